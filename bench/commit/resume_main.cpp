// bench_resume: one process of a run that is saved, or of one that goes on from there; bench/peers/checkpoint.py starts
// both. Prints a line of JSON: the seconds of saving and loading, the bytes that were written, and a digest of all
// states after the last step.
#include "durable_run.hpp"
#include "measure/command_line.hpp"
#include "measure/run_main.hpp"

#include <fmt/format.h>
#include <string>

namespace penstock::bench {
namespace {

struct Arguments {
  std::filesystem::path path = ".";
  std::uint64_t parameters = 64'000'000;
  std::string device = "nvme";
  bool checkpoint = false, loads = false;
  std::uint32_t steps = 3, more = 2;
};

/// A checkpoint needs no durable directory to be loaded.
Result<void> load(const Arguments& arguments, DurableRun& run) {
  if (arguments.checkpoint) {
    PENSTOCK_TRY(run.engine().load_checkpoint(arguments.path / "checkpoints"));
    return ok();
  }
  PENSTOCK_TRY_ASSIGN(const auto resumed, run.engine().resume());
  if (resumed) return ok();
  return Error::invalid_argument("bench_resume").object("--path").reason("it has no commit");
}

/// Returns the bytes that were written for it.
Result<ByteCount> save(const Arguments& arguments, DurableRun& run) {
  if (arguments.checkpoint) {
    PENSTOCK_TRY_ASSIGN(const auto saved, run.engine().save_checkpoint(arguments.path / "checkpoints"));
    return saved.written + saved.commit.copied + saved.commit.manifest * 2;
  }
  PENSTOCK_TRY_ASSIGN(const auto commit, run.engine().commit());
  return commit.copied + commit.manifest;
}

Result<void> run(const Arguments& arguments) {
  const auto to = arguments.device == "nvme" ? zero::OffloadDevice::nvme : zero::OffloadDevice::cpu;
  const bool is_durable = !arguments.loads || !arguments.checkpoint;
  PENSTOCK_TRY_ASSIGN(
      const auto run,
      DurableRun::create(arguments.parameters, to,
                         is_durable ? arguments.path / "durable" : std::filesystem::path(), arguments.path));
  double loading = 0, saving = 0;
  ByteCount written;
  TimePoint began = Clock::steady().now();
  if (arguments.loads) {
    PENSTOCK_TRY(load(arguments, *run));
    loading = seconds_since(began);
  } else {
    PENSTOCK_TRY(run->initialize());
    for (std::uint32_t step = 0; step < arguments.steps; ++step) PENSTOCK_TRY(run->step());
    began = Clock::steady().now();
    PENSTOCK_TRY_ASSIGN(written, save(arguments, *run));
    saving = seconds_since(began);
  }
  for (std::uint32_t step = 0; step < arguments.more; ++step) PENSTOCK_TRY(run->step());
  PENSTOCK_TRY_ASSIGN(const std::string digest, run->engine().digest());
  fmt::print("{{\"save\": {}, \"load\": {}, \"bytes\": {}, \"digest\": \"{}\"}}\n", saving, loading,
             written.value(), digest);
  return ok();
}

int main_body(int argc, char** argv) {
  Arguments arguments;
  measure::CommandLine app("One process of a run that is saved, or of one that goes on from there");
  app.add_option("--path", arguments.path, "directory of the run").show_default();
  app.add_option("--parameters", arguments.parameters, "of the model")
      .show_default()
      .range(std::uint64_t{100'000}, std::uint64_t{1} << 40);
  app.add_option("--device", arguments.device, "where parameters and states are kept")
      .show_default()
      .one_of({"cpu", "nvme"});
  app.add_flag("--checkpoint", arguments.checkpoint,
               "save_checkpoint() and load_checkpoint(), not commit() and resume()");
  app.add_flag("--load", arguments.loads, "go on from what another process has saved");
  app.add_option("--steps", arguments.steps, "before it is saved").show_default();
  app.add_option("--more", arguments.more, "steps after it is saved, or loaded").show_default();
  if (const auto status = app.parse(argc, argv)) return *status;
  return measure::exit_status(run(arguments));
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::bench::main_body(argc, argv); });
}
