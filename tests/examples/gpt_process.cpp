#include "gpt_process.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <csignal>
#include <filesystem>
#include <utility>

namespace gpt::test {

TrainProcess::TrainProcess(const std::string& arguments, const std::string& program) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  child_ = ::fork();
  if (child_ == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::execl("/bin/sh", "sh", "-c", ("exec " + program + " " + arguments + " < /dev/null").c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  pipe_ = ends[0];
}

TrainProcess::~TrainProcess() {
  if (child_ > 0) {
    kill(SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  if (pipe_ >= 0) ::close(pipe_);
}

bool TrainProcess::read_some() {
  std::array<char, 4096> buffer;
  const ssize_t count = ::read(pipe_, buffer.data(), buffer.size());
  if (count > 0) output_.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

bool TrainProcess::wait_for_output(const std::string& text) {
  while (output_.find(text) == std::string::npos) {
    if (!read_some()) return false;
  }
  return true;
}

Outcome TrainProcess::finish() {
  while (read_some()) {
  }
  int status = 0;
  if (child_ <= 0) return {};
  ::waitpid(std::exchange(child_, -1), &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), output_};
}

void TrainProcess::kill(int signal) const {
  if (child_ > 0) ::kill(child_, signal);  // no child: −1 would be everybody
}

int TrainProcess::open_swap_file(const std::string& directory) const {
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(child_) + "/fd", gone)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with(directory) && target.ends_with(" (deleted)")) {
      return ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    }
  }
  return -1;
}

Outcome train(const std::string& arguments) {
  return TrainProcess(arguments).finish();
}

}  // namespace gpt::test
