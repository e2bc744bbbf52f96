#pragma once

#include <sys/types.h>
#include <string>

namespace gpt::test {

struct Outcome {
  int status = -1;     ///< exit status; minus the signal, when one ended it
  std::string output;  ///< standard output and error
};

/// gpt_train as a user starts it, running beside the test.
class TrainProcess {
 public:
  /// `arguments` are words between spaces.
  explicit TrainProcess(const std::string& arguments);
  TrainProcess(const TrainProcess&) = delete;
  TrainProcess& operator=(const TrainProcess&) = delete;
  /// Kills what still runs.
  ~TrainProcess();

  /// Reads its output until `text` has come; false when it ended before.
  [[nodiscard]] bool wait_for_output(const std::string& text);
  /// Waits for its end.
  [[nodiscard]] Outcome finish();
  void kill(int signal) const;
  /// Opens the file without a name that it keeps in `directory`, for reading and writing; −1 when it has none.
  [[nodiscard]] int open_swap_file(const std::string& directory) const;

 private:
  bool read_some();

  pid_t child_ = -1;
  int pipe_ = -1;
  std::string output_;
};

/// Runs it to its end.
[[nodiscard]] Outcome train(const std::string& arguments);

}  // namespace gpt::test
