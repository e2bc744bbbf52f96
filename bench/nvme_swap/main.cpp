// nvme_swap: measures how fast the library reads, writes and swaps (reads, updates and writes back) swap files, and
// compares it with fio on the same files, with the same kind of memory, in the same rounds.

#include "contest.hpp"
#include "options.hpp"
#include "report.hpp"

#include "measure/command_line.hpp"
#include "measure/run_main.hpp"

namespace penstock::bench {
namespace {

Result<void> run(const Options& options) {
  const measure::Machine machine = measure::describe_machine();
  PENSTOCK_TRY_ASSIGN(const auto contest, Contest::create(options));
  std::FILE* const header = options.output == Output::csv ? stderr : stdout;
  if (options.output != Output::json) print_header(header, *contest, machine);
  PENSTOCK_TRY(contest->measure());

  const std::vector<Figure> all = figures(*contest);
  switch (options.output) {
    case Output::table: print_table(all, contest->direct()); break;
    case Output::json: print_json(*contest, machine, all); break;
    case Output::csv: print_csv(all, contest->direct()); break;
  }
  return ok();
}

int main_body(int argc, char** argv) {
  int status = 0;
  const auto options = parse_options(argc, argv, status);
  if (!options) return status;
  return measure::exit_status(run(*options));
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::bench::main_body(argc, argv); });
}
