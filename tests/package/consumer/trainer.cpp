#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

using namespace penstock;
using cpu_adam::StateKind;

/// Each layer computes y, the mean of its weights. The loss is the sum of width (y - 1)² / 2 over the layers, so that
/// the gradient of each weight is y - 1.
class Trainer {
 public:
  static constexpr std::uint64_t width = 1000;
  using Checkpoint = std::map<std::pair<std::uint32_t, StateKind>, std::vector<float>>;

  Trainer() {
    const char* json = R"({"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})";
    zero::ModelLayout model;
    for (const char* name : {"first", "second"}) {
      model.units.push_back({.name = name, .parameters = {{"weight", ElementCount(width), 0}}});
    }
    const auto config = zero::Config::from_text(json, "ds_config.json", /*world_size=*/1).value();
    rank_ = zero::Rank::create({.config = config, .model = model}).value();
    stream_ = rank_->device().create_stream().value();
  }
  void initialize() {
    engine()
        .initialize([](zero::ParameterId, std::uint64_t, std::span<float> w) { std::ranges::fill(w, 0.5f); })
        .value();
  }

  void step(bool fails = false) {
    engine().begin_step({}).value();
    std::vector<float> errors;
    for (std::uint32_t unit = 0; unit < 2; ++unit)
      errors.push_back(forward(engine().acquire(unit, *stream_).value()));
    for (std::uint32_t unit = 2; unit-- > 0;) {
      if (fails) throw std::string("the loss is NaN");
      auto gradients = engine().gradients(unit, *stream_).value();
      std::ranges::fill(values(gradients.slots()[0].tensor), errors[unit]);
      engine().reduce(std::move(gradients), *stream_).value();
    }
    (void)engine().step().value();
  }

  Checkpoint save() {
    Checkpoint saved;
    engine()
        .read_states(
            [&](zero::ParameterId id, StateKind kind, std::uint64_t first, std::span<const float> part) {
              auto& all = saved.try_emplace({id.unit, kind}, width).first->second;
              std::ranges::copy(part, all.begin() + static_cast<std::ptrdiff_t>(first));
              return ok();
            })
        .value();
    return saved;
  }
  void resume(std::uint64_t step, const Checkpoint& saved) {
    engine()
        .restore(step,
                 [&](zero::ParameterId id, StateKind kind, std::uint64_t first, std::span<float> part) {
                   std::ranges::copy_n(saved.at({id.unit, kind}).begin() + static_cast<std::ptrdiff_t>(first),
                                       static_cast<std::ptrdiff_t>(part.size()), part.begin());
                   return ok();
                 })
        .value();
  }
  void abandon(const std::string& cause) { engine().abandon_step(*stream_, cause).value(); }
  std::string digest() { return engine().digest().value(); }
  zero::Engine& engine() { return rank_->engine(); }

 private:
  static std::span<float> values(const DeviceTensor& tensor) {
    return tiers::HostDevice::bytes(tensor.bytes).as<float>();  // the device is host memory here
  }
  static float forward(const zero::UnitLease& lease) {
    float sum = 0;
    for (const float w : values(lease.parameters()[0])) sum += w / width;
    return sum - 1;
  }

  std::unique_ptr<zero::Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;  // destroyed before the rank, whose device it uses
};

int main() {
  Trainer whole, first, second;
  whole.initialize();
  for (int i = 0; i < 4; ++i) whole.step();

  first.initialize();
  for (int i = 0; i < 2; ++i) first.step();
  try {
    first.step(/*fails=*/true);
  } catch (const std::string& cause) {
    first.abandon(cause);
  }
  second.resume(first.engine().completed_steps(), first.save());
  for (int i = 0; i < 2; ++i) second.step();
  std::printf("%s\n%s\n", whole.digest().c_str(), second.digest().c_str());
  return whole.digest() == second.digest() ? 0 : 1;
}
