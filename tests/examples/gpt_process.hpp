#pragma once

#include <sys/types.h>
#include <string>

namespace gpt::test {

struct Outcome {
  int status = -1;     ///< exit status; minus the signal, when one ended it
  std::string output;  ///< standard output and error
};

/// A process of gpt_train, or of another program, that runs while the test continues.
class TrainProcess {
 public:
  /// `arguments` are separated by spaces.
  explicit TrainProcess(const std::string& arguments, const std::string& program = GPT_TRAIN);
  TrainProcess(const TrainProcess&) = delete;
  TrainProcess& operator=(const TrainProcess&) = delete;
  /// Kills the process if it still runs.
  ~TrainProcess();

  /// Reads its output until `text` appears; false if the process ended before.
  [[nodiscard]] bool wait_for_output(const std::string& text);
  /// Waits for its end.
  [[nodiscard]] Outcome finish();
  void kill(int signal) const;
  /// Opens the process's unnamed file in `directory` for reading and writing; −1 if it has none, or has ended.
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
