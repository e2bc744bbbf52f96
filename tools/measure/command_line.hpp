#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace penstock::measure {

/// An option or a flag of a CommandLine. A copy refers to the same option; it is used while the program's CommandLine
/// exists. The functions that change the option return it.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}

  // In --help.
  /// Prints the variable's present value as the default.
  CommandOption show_default();
  /// What stands for the value, instead of the variable's type: "FILE".
  CommandOption type_name(const std::string& name);

  // Which values are taken.
  /// Both limits included. T: int, or 32 or 64 bits without sign; --help tells which.
  template <class T>
  CommandOption range(T least, T most);
  /// Both limits included. Refuses NaN.
  CommandOption number_range(double least, double most);
  CommandOption positive();
  CommandOption one_of(std::vector<std::string> values);
  CommandOption one_of(std::initializer_list<std::uint32_t> values);
  /// One of the keys.
  template <class T>
  CommandOption one_of(const std::map<std::string, T>& values) {
    std::vector<std::string> keys;
    for (const auto& value : values) keys.push_back(value.first);
    return one_of(std::move(keys));
  }
  /// `refusal` returns what is wrong with a value, or an empty text.
  CommandOption check(std::function<std::string(const std::string&)> refusal);
  /// Takes units of bytes, which are powers of 1024: 64k, 1GiB.
  CommandOption bytes();

  // How many values are taken.
  CommandOption required();
  /// Takes so many values, or more.
  CommandOption at_least(int values);
  /// What separates the values within an argument.
  CommandOption delimiter(char separator);
  /// Takes the values of each repetition, also after CommandLine::take_last().
  CommandOption take_all();
  /// The environment variable that gives the value if the command line does not.
  CommandOption env_name(const std::string& name);

  // Which options go together.
  CommandOption needs(CommandOption other);
  CommandOption excludes(CommandOption other);
  /// `name`: of an option that the same command already has.
  CommandOption excludes(const std::string& name);

  /// How often it was given.
  [[nodiscard]] std::size_t count() const;

 private:
  CLI::Option* option_;
};

/// The command line of a program, or of a command of it. Only command_line.cpp includes CLI11, which takes seconds to
/// compile.
///
/// A copy refers to the same command line. Copies of a command's are used while one of the program's exists.
class CommandLine {
 public:
  /// Of a program. Without a `name`, --help prints that by which the program was started.
  explicit CommandLine(const std::string& description, const std::string& name = "");

  /// `names`: "--steps", or "file" for an argument without dashes. `variable` outlives the parsing. command_line.cpp
  /// lists the types; any other does not link.
  template <class T>
  CommandOption add_option(const std::string& names, T& variable, const std::string& description = "");
  /// `variable` outlives the parsing.
  CommandOption add_flag(const std::string& name, bool& variable, const std::string& description);
  /// A flag that prints `text` and ends the program.
  void version(const std::string& flag, const std::string& text);
  /// Of an option that is given again, the last value counts. Holds for options that are added later.
  void take_last();

  CommandLine add_command(const std::string& name, const std::string& description);
  /// One of the commands must be given.
  void require_command();
  /// What parse() calls for a command that was given, after its options were taken. `run` may throw what
  /// fail_required() and its like throw.
  void on_run(std::function<void()> run);

  struct UnknownCommand {
    std::string of, name;  ///< "penstock config", "chek"
  };
  /// The first argument where a command must be, if it is none.
  [[nodiscard]] std::optional<UnknownCommand> unknown_command(int argc, const char* const* argv) const;

  /// Takes the options. If the program must end, returns its exit status: 0 after --help, 2 after an error, which has
  /// been printed. `hint` is static; the error is printed on one line with it, instead of two with CLI11's own hint.
  [[nodiscard]] std::optional<int> parse(int argc, const char* const* argv, const char* hint = nullptr);

  /// How often the option was given.
  [[nodiscard]] std::size_t count(const std::string& name) const;

 private:
  friend CommandOption add_io_deadline(CommandLine& line, TimePoint& deadline);
  explicit CommandLine(std::shared_ptr<CLI::App> app);

  std::shared_ptr<CLI::App> app_;  // a command's is owned by that of the program
};

/// Throws that `what` is missing. For CommandLine::on_run().
[[noreturn]] void fail_required(const std::string& what);
/// Throws that `option` cannot be given with `other`. For CommandLine::on_run().
[[noreturn]] void fail_excludes(const std::string& option, const std::string& other);
/// Throws that `option` cannot be given without `other`. For CommandLine::on_run().
[[noreturn]] void fail_requires(const std::string& option, const std::string& other);

/// Adds --rounds. The value in `rounds` is the default; it outlives the parsing.
void add_rounds(CommandLine& line, std::uint32_t& rounds);

/// Adds --io-deadline, which sets `deadline`. Its value in `deadline` is the default; it outlives the parsing.
CommandOption add_io_deadline(CommandLine& line, TimePoint& deadline);

/// The exit status of a program after `done`: 0, or 2 where its arguments were wrong, or 1. Prints the error.
[[nodiscard]] int exit_status(const Result<void>& done);

}  // namespace penstock::measure
