// Sign descent with momentum as a function of the trainer: fits y = 3x with one weight.
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <cmath>
#include <cstdio>

using namespace penstock;

Result<void> sign_descent(const zero::UpdateSegment& segment) {
  const zero::GroupHyperparameters& now = segment.settings;
  for (std::size_t i = 0; i < segment.gradient.size(); ++i) {
    float& momentum = segment.first_moment[i];
    momentum = now.beta1 * momentum + (1 - now.beta1) * segment.gradient[i];
    if (momentum != 0) segment.master[i] -= std::copysign(now.learning_rate, momentum);
  }
  return ok();
}

int main() {
  zero::ModelLayout model;
  model.units = {{.name = "slope", .parameters = {{.name = "a", .count = ElementCount(1)}}}};
  const auto config =
      zero::Config::from_text(
          R"({"train_batch_size": 1, "optimizer": {"type": "Custom", "params": {"moments": 1, "lr": 0.01}}})",
          "the program", /*world_size=*/1)
          .value();
  const auto rank = zero::Rank::create({.config = config, .model = model, .update = sign_descent}).value();
  const auto stream = rank->device().create_stream().value();
  zero::Engine& engine = rank->engine();
  engine.initialize([](zero::ParameterId, std::uint64_t, std::span<float>) {}).value();  // 0

  const auto first = [](const DeviceTensor& tensor) -> float& {
    return tiers::HostDevice::bytes(tensor.bytes).as<float>()[0];
  };
  const auto weight = [&] { return first(engine.acquire(0, *stream).value().parameters()[0]); };
  for (int step = 0; step < 400; ++step) {
    engine.begin_step({}).value();
    const float error = weight() - 3;
    auto gradients = engine.gradients(0, *stream).value();
    first(gradients.slots()[0].tensor) = error;
    engine.reduce(std::move(gradients), *stream).value();
    engine.step().value();
  }
  std::printf("y = %.2f x\n", weight());
  return std::abs(weight() - 3) < 0.2f ? 0 : 1;
}
