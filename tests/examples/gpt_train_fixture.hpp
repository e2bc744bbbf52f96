#pragma once

#include "gpt_process.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <initializer_list>
#include <string>

namespace gpt::test {

/// The digest that a run has printed; empty without one.
[[nodiscard]] std::string digest_in(const std::string& output);

class GptTrain : public testing::Test {
 protected:
  /// A small model on the scratch directory; `change` is put into the configuration.
  [[nodiscard]] std::string arguments(const std::string& change = "",
                                      const std::string& key = "zero_optimization",
                                      const std::string& optimizer_device = "nvme") const;
  [[nodiscard]] std::string swap() const { return swap_.path().string(); }
  /// The same arguments, with the text of the configuration changed.
  [[nodiscard]] std::string with_replaced(const std::string& all, const std::string& old,
                                          const std::string& by) const;
  /// Runs it with `redirection` of the shell, where it cannot print: it must say so and use no file as its output.
  void expect_output_error(const std::string& redirection) const;
  void expect_refused(const Outcome& outcome, int status, std::initializer_list<const char*> words) const;

  penstock::test::ScratchDirectory directory_, swap_;
};

}  // namespace gpt::test
