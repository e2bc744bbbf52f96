// Fits y = 3x - 2 by stochastic gradient descent with AdamW, on the CPU.
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <cstdio>
#include <span>

using namespace penstock;

int main() {
  // Two units, in the order of the forward, with one parameter each.
  zero::ModelLayout model;
  model.units = {{.name = "slope", .parameters = {{.name = "a", .count = ElementCount(1)}}},
                 {.name = "offset", .parameters = {{.name = "b", .count = ElementCount(1)}}}};
  const auto config = zero::Config::from_text(
      R"({"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.05}}})", "the program",
      /*world_size=*/1);
  if (!config) return std::fprintf(stderr, "%s\n", config.error().message().c_str()), 2;
  const auto rank =
      zero::Rank::create({.config = *config, .model = model}).value();  // value() throws on an error
  for (const auto& note : rank->notes()) std::fprintf(stderr, "note: %s\n", note.c_str());
  const auto stream = rank->device().create_stream().value();
  zero::Engine& engine = rank->engine();
  engine
      .initialize([](zero::ParameterId, std::uint64_t, std::span<float> values) {
        for (float& value : values) value = 0.0f;
      })
      .value();

  const auto floats = [](const DeviceTensor& tensor) {
    return tiers::HostDevice::bytes(tensor.bytes).as<float>();
  };
  const auto weight_of = [&](std::uint32_t unit) {
    const auto lease =
        engine.acquire(unit, *stream).value();  // the parameters stay where they are while it exists
    return floats(lease.parameters()[0])[0];
  };
  float loss = 0;
  for (int step = 0; step < 400; ++step) {
    engine.begin_step({}).value();
    const float x = static_cast<float>(step % 7) - 3;
    const float error = weight_of(0) * x + weight_of(1) - (3 * x - 2);
    loss = error * error / 2;
    for (const std::uint32_t unit : {1u, 0u}) {  // the backward
      auto gradients = engine.gradients(unit, *stream).value();
      for (const zero::GradientSlot& slot : gradients.slots()) {
        const float gradient = unit == 0 ? error * x : error;
        floats(slot.tensor)[0] = slot.accumulate ? floats(slot.tensor)[0] + gradient : gradient;
      }
      engine.reduce(std::move(gradients), *stream).value();
    }
    if (const auto outcome = engine.step().value(); outcome.kind == zero::StepOutcome::Kind::skipped) {
      std::fprintf(stderr, "step %d skipped: %s\n", step, outcome.skip_reason.c_str());
    }
  }
  std::printf("y = %.2f x + %.2f, loss %.5f\n", weight_of(0), weight_of(1), loss);
  return loss < 1e-2f ? 0 : 1;
}
