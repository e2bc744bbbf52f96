#include "kit/run_program.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/base/check.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

namespace penstock::test {

namespace {

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

Json::Value ProgramResult::json() const {
  const Json::CharReaderBuilder builder;
  const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
  Json::Value value;
  return reader->parse(out.data(), out.data() + out.size(), &value, nullptr) ? value : Json::Value();
}

ProgramResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                          StandardOutput output) {
  ScratchDirectory directory;
  const std::filesystem::path out = directory.path() / "out", err = directory.path() / "err";
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  PENSTOCK_CHECK(posix_spawn_file_actions_init(&actions) == 0);
  constexpr int flags = O_WRONLY | O_CREAT | O_TRUNC;
  if (output == StandardOutput::closed) {
    posix_spawn_file_actions_addclose(&actions, STDOUT_FILENO);
  } else {
    const char* const path = output == StandardOutput::captured ? out.c_str() : "/dev/full";
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, path, flags, 0600);
  }
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), flags, 0600);
  pid_t process = 0;
  const int spawned = posix_spawn(&process, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  PENSTOCK_CHECK(spawned == 0);

  int status = 0;
  PENSTOCK_CHECK(::waitpid(process, &status, 0) == process);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_all(out), read_all(err)};
}

void expect_output_errors(const std::string& program, const std::vector<std::string>& arguments) {
  for (const auto output : {StandardOutput::full_device, StandardOutput::closed}) {
    const ProgramResult result = run_program(program, arguments, output);
    const char* const which = output == StandardOutput::closed ? "closed" : "on a full device";
    EXPECT_EQ(result.status, 1) << program << " with standard output " << which;
    EXPECT_NE(result.err.find("error: standard output cannot be written"), std::string::npos)
        << which << ": " << result.err;
  }
}

}  // namespace penstock::test
