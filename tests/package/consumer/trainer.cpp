#include <penstock/zero/rank.hpp>

#include <algorithm>

using namespace penstock;

/// One rank that embeds the library from nothing but the installed headers: a step whose gradients are zero.
int main() {
  zero::ModelLayout layout;
  layout.units = {{.name = "layer", .parameters = {{"weight", ElementCount(1000), 0}}}};
  auto rank = zero::Rank::create({.config = {}, .model = layout}).value();
  zero::Engine& engine = rank->engine();
  engine
      .initialize([](zero::ParameterId, std::uint64_t, std::span<float> values) {
        std::fill(values.begin(), values.end(), 0.5f);
      })
      .value();
  auto stream = rank->device().create_stream().value();

  engine.begin_step({}).value();
  auto weights = engine.acquire(0, *stream).value();
  auto gradients = engine.gradients(0, *stream).value();
  rank->device().fill_zero(stream->handle(), gradients.slots()[0].tensor.bytes).value();
  weights.end();
  engine.reduce(std::move(gradients), *stream).value();
  const zero::StepOutcome outcome = engine.step().value();

  return outcome.kind == zero::StepOutcome::Kind::updated && outcome.step == 1 ? 0 : 1;
}
