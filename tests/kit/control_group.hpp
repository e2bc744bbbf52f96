#pragma once

#include <penstock/base/units.hpp>

#include <filesystem>
#include <string>

namespace penstock::test {

/// A control group of this machine with a limit of memory. At its end the process goes back to its own one.
class ControlGroup {
 public:
  ControlGroup();
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;
  ~ControlGroup();

  /// Why there is none; empty when there is.
  [[nodiscard]] const std::string& skip_reason() const { return skip_reason_; }

  /// Moves this process into the group: the kernel counts what it allocates from now on. False if refused.
  [[nodiscard]] bool enter() const;
  /// Of more than the group uses. False if the kernel refuses.
  [[nodiscard]] bool limit(ByteCount bytes) const;
  [[nodiscard]] ByteCount used() const;
  /// Of the limit, as a part of an error or a message.
  [[nodiscard]] std::string limit_file() const { return (directory_ / limit_file_).string(); }

 private:
  std::filesystem::path directory_, own_;  // own_: of this process at first
  std::string limit_file_, usage_file_, skip_reason_;
};

}  // namespace penstock::test
