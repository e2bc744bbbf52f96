#include "command_line.hpp"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace penstock::measure {

CommandOption CommandOption::show_default() {
  option_->capture_default_str();
  return *this;
}

CommandOption CommandOption::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

template <class T>
CommandOption CommandOption::range(T least, T most) {
  option_->check(CLI::Range(least, most));
  return *this;
}
template CommandOption CommandOption::range(int, int);
template CommandOption CommandOption::range(std::uint32_t, std::uint32_t);
template CommandOption CommandOption::range(std::uint64_t, std::uint64_t);

CommandOption CommandOption::number_range(double least, double most) {
  const std::string range =
      "FLOAT in [" + CLI::detail::to_string(least) + " - " + CLI::detail::to_string(most) + "]";
  // Not CLI::Range, which lets NaN pass.
  const auto refusal = [=](const std::string& text) {
    double number = 0;
    const bool is_within = CLI::detail::lexical_cast(text, number) && number >= least && number <= most;
    return is_within ? std::string() : "Value " + text + " not in " + range;
  };
  option_->check(CLI::Validator(refusal, range));
  return *this;
}

CommandOption CommandOption::positive() {
  option_->check(CLI::PositiveNumber);
  return *this;
}

CommandOption CommandOption::one_of(std::vector<std::string> values) {
  option_->check(CLI::IsMember(std::move(values)));
  return *this;
}

CommandOption CommandOption::one_of(std::initializer_list<std::uint32_t> values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

CommandOption CommandOption::check(std::function<std::string(const std::string&)> refusal) {
  option_->check(std::move(refusal));
  return *this;
}

CommandOption CommandOption::bytes() {
  option_->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  return *this;
}

CommandOption CommandOption::required() {
  option_->required();
  return *this;
}

CommandOption CommandOption::at_least(int values) {
  option_->expected(values, CLI::detail::expected_max_vector_size);
  return *this;
}

CommandOption CommandOption::delimiter(char separator) {
  option_->delimiter(separator);
  return *this;
}

CommandOption CommandOption::take_all() {
  option_->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return *this;
}

CommandOption CommandOption::env_name(const std::string& name) {
  option_->envname(name);
  return *this;
}

CommandOption CommandOption::needs(CommandOption other) {
  option_->needs(other.option_);
  return *this;
}

CommandOption CommandOption::excludes(CommandOption other) {
  option_->excludes(other.option_);
  return *this;
}

CommandOption CommandOption::excludes(const std::string& name) {
  option_->excludes(name);
  return *this;
}

std::size_t CommandOption::count() const {
  return option_->count();
}

CommandLine::CommandLine(const std::string& description, const std::string& name)
    : app_(std::make_shared<CLI::App>(description, name)) {}

CommandLine::CommandLine(std::shared_ptr<CLI::App> app) : app_(std::move(app)) {}

template <class T>
CommandOption CommandLine::add_option(const std::string& names, T& variable, const std::string& description) {
  return CommandOption(app_->add_option(names, variable, description));
}
template CommandOption CommandLine::add_option(const std::string&, int&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::uint16_t&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::uint32_t&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::uint64_t&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, double&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::string&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::filesystem::path&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::optional<std::uint32_t>&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::optional<float>&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::optional<std::string>&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::optional<std::filesystem::path>&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::vector<std::uint32_t>&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::vector<std::uint64_t>&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::vector<std::string>&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::vector<std::filesystem::path>&,
                                               const std::string&);

CommandOption CommandLine::add_flag(const std::string& name, bool& variable, const std::string& description) {
  return CommandOption(app_->add_flag(name, variable, description));
}

void CommandLine::version(const std::string& flag, const std::string& text) {
  app_->set_version_flag(flag, text);
}

void CommandLine::take_last() {
  app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

CommandLine CommandLine::add_command(const std::string& name, const std::string& description) {
  // Does not own it: a callback that holds its own command would keep it for ever.
  const std::shared_ptr<void> nothing;
  return CommandLine(std::shared_ptr<CLI::App>(nothing, app_->add_subcommand(name, description)));
}

void CommandLine::require_command() {
  app_->require_subcommand(1);
}

void CommandLine::on_run(std::function<void()> run) {
  app_->callback(std::move(run));
}

std::optional<CommandLine::UnknownCommand> CommandLine::unknown_command(int argc,
                                                                        const char* const* argv) const {
  const CLI::App* command = app_.get();
  std::string of = command->get_name();
  for (int i = 1; i < argc && argv[i][0] != '-' && command->get_require_subcommand_min() > 0; ++i) {
    const std::string name = argv[i];
    const auto found = command->get_subcommands([&](const CLI::App* one) { return one->check_name(name); });
    if (found.empty()) return UnknownCommand{of, name};
    command = found.front();
    of += " " + name;
  }
  return std::nullopt;
}

std::optional<int> CommandLine::parse(int argc, const char* const* argv, const char* hint) {
  if (hint != nullptr) {
    app_->failure_message([hint](const CLI::App*, const CLI::Error& error) {
      return std::string("error: ") + error.what() + " (" + hint + ")\n";
    });
  }
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_->exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

std::size_t CommandLine::count(const std::string& name) const {
  return app_->count(name);
}

void fail_required(const std::string& what) {
  throw CLI::RequiredError(what);
}

void fail_excludes(const std::string& option, const std::string& other) {
  throw CLI::ExcludesError(option, other);
}

void fail_requires(const std::string& option, const std::string& other) {
  throw CLI::RequiresError(option, other);
}

void add_rounds(CommandLine& line, std::uint32_t& rounds) {
  line.add_option("--rounds", rounds, "timed rounds").show_default().range(1, 1000);
}

CommandOption add_io_deadline(CommandLine& line, TimePoint& deadline) {
  const auto set = [&deadline](std::uint32_t seconds) { deadline = std::chrono::seconds(seconds); };
  CLI::Option* const option =
      line.app_->add_option_function<std::uint32_t>("--io-deadline", set,
                                                    "penstock.io_deadline_seconds here: time limit of a "
                                                    "request, and of each file operation at the start");
  option->default_str(std::to_string(std::chrono::duration_cast<std::chrono::seconds>(deadline).count()));
  return CommandOption(option).type_name("SECONDS").range(1u, 86400u);
}

int exit_status(const Result<void>& done) {
  if (done) return 0;
  std::fprintf(stderr, "error: %s\n", done.error().message().c_str());
  return done.error().code() == ErrorCode::invalid_argument ? 2 : 1;
}

}  // namespace penstock::measure
