#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/io/fault_engine.hpp>

#include <cerrno>

namespace {

using namespace penstock;

/// Stores a tensor in a swap file whose requests meet the plan. An embedder's own test of faults.
Result<void> stored_under(const tiers::FaultPlan& plan) {
  swap::RuntimeOptions options{.host_budget = ByteCount(1 << 21)};
  options.paths.push_back({.directory = ".", .capacity = ByteCount(1 << 20)});
  options.paths[0].decorate =
      [&](std::unique_ptr<tiers::IoEngine> engine) -> std::unique_ptr<tiers::IoEngine> {
    return std::make_unique<tiers::FaultEngine>(std::move(engine), plan);
  };
  auto runtime = swap::Runtime::create(options).value();
  const auto tensor =
      runtime->add({.name = "t", .size = ByteCount(4096), .write_behind = true}, true).value();
  runtime->acquire(tensor, swap::Access::overwrite).value().end();
  return runtime->flush();
}

}  // namespace

int main() {
  auto runtime = swap::Runtime::create({.host_budget = ByteCount(1 << 21)}).value();
  auto tensor = runtime->add({.name = "t", .size = ByteCount(4096)}, false).value();
  if (runtime->acquire(tensor, swap::Access::overwrite).value().bytes().size().value() != 4096) return 1;
  if (!stored_under({})) return 2;
  const auto failed = stored_under({tiers::Fault::fail(tiers::IoOperation::write, 0, ENODEV)});
  return !failed && failed.error().code() == ErrorCode::io ? 0 : 3;
}
