// The whole model, on every backend: its gradient against finite differences, and the same bits each time.
#include "gpt/model.hpp"
#include "gpt_backend.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace gpt::test {
namespace {

using penstock::DType;

constexpr ModelConfig tiny{.layers = 2, .width = 16, .heads = 2, .context = 5, .seed = 3};
constexpr std::uint32_t sequences = 2, rows = 10;

ModelConfig with_adapters(ModelConfig config) {
  config.lora = LoraConfig{.rank = 8, .alpha = 6};
  return config;
}

/// A tiny model with its parameters and gradients in separate tensors. Frozen parameters have an empty gradient.
class ModelOnDevice {
 public:
  ModelOnDevice(Backend& backend, DType dtype, bool checkpoint = false, const ModelConfig& config = tiny)
      : backend_(backend),
        model_(Model::create(config, backend.ops()).value()),
        activations_(
            Activations::allocate(
                config,
                {.sequences = sequences, .checkpoint = checkpoint, .operands = backend.ops().operand_dtype()},
                backend.allocator())
                .value()
                .front()),
        visits_(description().backward_visits(checkpoint)) {
    for (std::size_t unit = 0; unit < description().units().size(); ++unit) {
      weights_.emplace_back();
      gradients_.emplace_back();
      for (const ParameterDescription& parameter : description().units()[unit].parameters) {
        const auto bytes = bytes_of(parameter.count, dtype).value();
        for (auto* tensors : {&weights_, &gradients_}) {
          if (tensors == &gradients_ && parameter.frozen) {
            tensors->back().push_back({});
            continue;
          }
          buffers_.push_back(backend.allocator().allocate(bytes).value());
          tensors->back().push_back({buffers_.back().bytes.subspan({}, bytes), dtype});
        }
      }
    }
  }

  const ModelDescription& description() const { return model_.description(); }
  DeviceTensor weight(ParameterId id) const { return weights_[id.unit][id.index]; }
  DeviceTensor gradient(ParameterId id) const { return gradients_[id.unit][id.index]; }

  std::vector<ParameterId> parameters() const {
    std::vector<ParameterId> ids;
    for (std::size_t unit = 0; unit < weights_.size(); ++unit) {
      for (std::size_t index = 0; index < weights_[unit].size(); ++index) ids.push_back({unit, index});
    }
    return ids;
  }

  std::vector<ParameterId> trained() const {
    std::vector<ParameterId> ids = parameters();
    std::erase_if(ids, [&](ParameterId id) { return description().parameter(id).frozen; });
    return ids;
  }

  /// Weights of some size, so that every part of the model matters to the loss; few different bytes, so that
  /// tokens and targets meet in rows of the tied embedding.
  void fill() {
    penstock::test::SeededRandom choices(11);
    for (const ParameterId id : parameters()) {
      Values values(weight(id).count().value());
      for (float& x : values) x = description().parameter(id).initial.constant + 0.4f * choices.symmetric();
      backend_.write(values, weight(id));
    }
    write_tokens();
  }
  void write_tokens() {
    constexpr std::uint8_t tokens[rows] = {1, 2, 3, 1, 2, 200, 1, 200, 3, 3};
    constexpr std::uint8_t targets[rows] = {2, 3, 1, 2, 255, 1, 200, 3, 3, 0};
    backend_.write(std::as_bytes(std::span(tokens)), activations_.tokens);
    backend_.write(std::as_bytes(std::span(targets)), activations_.targets);
  }

  double forward() {
    for (std::size_t unit = 0; unit < weights_.size(); ++unit) {
      const auto done = model_.forward(backend_.stream(), unit, of_unit(weights_, unit), activations_);
      EXPECT_TRUE(done) << done.error().message();
    }
    double sum = 0;
    for (const float loss : backend_.read(activations_.losses)) sum += loss;
    return sum / rows;
  }

  void backward(float loss_scale = 1.0f) {
    for (const BackwardVisit& visit : visits_) {
      if (visit.recompute) {
        const auto done =
            model_.recompute(backend_.stream(), visit.unit, of_unit(weights_, visit.unit), activations_);
        EXPECT_TRUE(done) << done.error().message();
      }
      if (visit.backward) backward(visit.unit, loss_scale);
    }
  }

 private:
  std::vector<DeviceTensor> of_unit(const std::vector<std::vector<DeviceTensor>>& tensors,
                                    std::size_t unit) const {
    std::vector<DeviceTensor> result = tensors[unit];
    for (const ParameterId id : description().units()[unit].uses)
      result.push_back(tensors[id.unit][id.index]);
    return result;
  }

  void backward(std::size_t unit, float loss_scale) {
    std::vector<Gradient> gradients;
    for (const DeviceTensor& tensor : of_unit(gradients_, unit)) gradients.push_back({tensor});
    if (unit == 0) gradients[0].write = GradientWrite::accumulate;  // after the head's use of it
    const auto done = model_.backward(backend_.stream(), unit, of_unit(weights_, unit), gradients,
                                      activations_, loss_scale);
    EXPECT_TRUE(done) << done.error().message();
  }

  Backend& backend_;
  Model model_;
  Activations activations_;
  std::vector<BackwardVisit> visits_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::vector<DeviceTensor>> weights_, gradients_;
};

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

/// The loss's derivative along the unit vector `direction` in one parameter, by a central difference.
double difference(Backend& backend, ModelOnDevice& model, ParameterId id, const Values& direction) {
  constexpr float h = 2e-2f;
  const Values middle = backend.read(model.weight(id));
  const auto loss_at = [&](float distance) {
    Values moved = middle;
    for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += distance * direction[i];
    backend.write(moved, model.weight(id));
    return model.forward();
  };
  const double result = (loss_at(h) - loss_at(-h)) / (2 * double{h});
  backend.write(middle, model.weight(id));
  return result;
}

}  // namespace

void ModelConformance::expect_differences(const ModelConfig& config) {
  ModelOnDevice model(backend(), DType::fp32, /*checkpoint=*/false, config),
      exact(reference(), DType::fp32, /*checkpoint=*/false, config);
  model.fill();
  exact.fill();
  const double tolerance = tolerance_of_several();

  model.forward();
  model.backward();

  for (const ParameterId id : model.trained()) {
    SCOPED_TRACE(model.description().units()[id.unit].name + "." + model.description().parameter(id).name);
    const Values gradient = read(model.gradient(id));
    const double norm = std::sqrt(dot(gradient, gradient));
    ASSERT_GT(norm, 1e-3);

    // Along itself a gradient of the wrong size shows, along random signs one that points the wrong way.
    Values along = gradient, signs = random(gradient.size());
    for (float& x : along) x = static_cast<float>(x / norm);
    for (float& x : signs) x = std::copysign(1 / std::sqrt(static_cast<float>(signs.size())), x);
    EXPECT_NEAR(difference(reference(), exact, id, along), norm, (5e-3 + tolerance) * norm + 1e-4);
    EXPECT_NEAR(difference(reference(), exact, id, signs), dot(gradient, signs),
                (2e-3 + tolerance) * norm + 1e-4);
  }
}

namespace {

TEST_P(ModelConformance, DifferentiatesTheWholeModelThroughEveryParameter) {
  expect_differences(tiny);
}

TEST_P(ModelConformance, DifferentiatesTheModelThroughItsAdaptersAlone) {
  ASSERT_EQ(ModelOnDevice(backend(), DType::fp32, false, with_adapters(tiny)).trained().size(), 2u * 4);
  expect_differences(with_adapters(tiny));
}

TEST_P(ModelConformance, HasTheLossOfTheBaseWhereAnAdaptersSecondMatrixIsZero) {
  const auto losses = [&](const ModelConfig& config) {
    ModelOnDevice model(backend(), DType::bf16, /*checkpoint=*/false, config);
    for (const ParameterId id : model.parameters()) {
      Values values(model.weight(id).count().value());
      model.description().initial_values(id, 0, values);
      if (model.description().parameter(id).path.find("lora_b") == std::string::npos) {
        for (std::size_t i = 0; i < values.size(); ++i) values[i] += 0.03f * static_cast<float>(i % 7);
      }
      backend().write(values, model.weight(id));
    }
    model.write_tokens();
    return model.forward();
  };

  EXPECT_EQ(losses(with_adapters(tiny)), losses(tiny));
}

TEST_P(ModelConformance, ScalesTheGradientAndNotTheLoss) {
  ModelOnDevice model(backend(), DType::fp32);
  model.fill();
  const ParameterId id{.unit = 1, .index = 2};

  const double loss = model.forward();
  model.backward();
  Values wanted = read(model.gradient(id));
  const double loss_again = model.forward();
  model.backward(0.5f);

  for (float& x : wanted) x *= 0.5f;
  EXPECT_EQ(loss, loss_again);
  EXPECT_EQ(read(model.gradient(id)), wanted);
}

TEST_P(ModelConformance, TakesBf16ParametersAndGivesBf16GradientsNearTheFp32Ones) {
  ModelOnDevice narrow(backend(), DType::bf16), wide(backend(), DType::fp32);
  narrow.fill();
  wide.fill();
  for (const ParameterId id : wide.parameters()) backend().write(read(narrow.weight(id)), wide.weight(id));

  EXPECT_EQ(narrow.forward(), wide.forward());
  narrow.backward();
  wide.backward();

  for (const ParameterId id : wide.parameters()) {
    SCOPED_TRACE(wide.description().parameter(id).name);
    const Values got = read(narrow.gradient(id)), exact = read(wide.gradient(id));
    // One rounding of the element; the tied embedding has one more, of a part that may be larger than the
    // sum.
    const auto [least, most] = std::minmax_element(exact.begin(), exact.end());
    const double part = id == ParameterId{0, 0} ? std::max(-*least, *most) / 256 : 1e-6;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], exact[i], part + std::abs(exact[i]) / 256) << "element " << i;
    }
  }
}

TEST_P(ModelConformance, GivesTheSameBitsEachTimeAndWithCheckpoints) {
  for (const ModelConfig& config : {tiny, with_adapters(tiny)}) {
    std::vector<Values> gradients[3];
    for (auto& of_run : gradients) {
      ModelOnDevice model(backend(), DType::bf16, /*checkpoint=*/&of_run == &gradients[2], config);
      model.fill();
      of_run.push_back({static_cast<float>(model.forward())});
      model.backward();
      for (const ParameterId id : model.trained()) of_run.push_back(read(model.gradient(id)));
    }
    EXPECT_EQ(gradients[0], gradients[1]);
    EXPECT_EQ(gradients[0], gradients[2]);
  }
}

}  // namespace

void ModelConformance::expect_the_same_of_row_blocks(const ModelConfig& whole) {
  ModelConfig cut = whole;
  cut.unit_elements_max = penstock::ElementCount(64 * 1281);
  const auto gradients_of = [&](const ModelConfig& config, bool checkpoint) {
    ModelOnDevice model(backend(), DType::bf16, checkpoint, config);
    const ModelDescription& description = model.description();
    for (const ParameterId id : model.parameters()) {
      Values values(model.weight(id).count().value());
      description.initial_values(id, 0, values);
      // No parameter of zeros, which takes the gradients of others away.
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] += 0.01f * static_cast<float>((description.parameter(id).first + i) % 7);
      backend().write(values, model.weight(id));
    }
    model.write_tokens();
    std::map<std::uint64_t, Values> gradients;  // by the number of the whole parameter
    gradients[~std::uint64_t{}] = {static_cast<float>(model.forward())};
    model.backward();
    for (const ParameterId id : model.trained()) {
      const Values block = read(model.gradient(id));
      Values& all = gradients[description.parameter(id).number];
      EXPECT_EQ(all.size(), description.parameter(id).first) << description.parameter(id).name;
      all.insert(all.end(), block.begin(), block.end());
    }
    return gradients;
  };
  const auto wanted = gradients_of(whole, false), got = gradients_of(cut, false),
             again = gradients_of(cut, true);

  EXPECT_EQ(again, got);
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [number, values] : wanted) {
    SCOPED_TRACE("parameter " + std::to_string(number));
    ASSERT_EQ(got.at(number).size(), values.size());
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(got.at(number)[i] - values[i], 2);
      size += std::pow(values[i], 2);
    }
    ASSERT_GT(size, 0);
    EXPECT_LT(std::sqrt(difference / size), 4e-3);  // one rounding to bf16
  }
}

namespace {

TEST_P(ModelConformance, GivesTheSameFromRowBlocksAsFromWholeMatrices) {
  // Every layer is cut: proj into blocks of fewer than 64 · 257 elements, down into blocks of 64 rows.
  const ModelConfig whole{.layers = 1, .width = 320, .heads = 4, .context = 5, .seed = 3};

  expect_the_same_of_row_blocks(whole);
  expect_the_same_of_row_blocks(with_adapters(whole));
}

TEST_P(ModelConformance, RefusesARankThatTheDeviceDoesNotCompute) {
  const std::uint32_t multiple = ops().limits().rank_multiple;
  ModelConfig config = with_adapters(tiny);
  EXPECT_TRUE(Model::create(config, ops()));
  config.lora->rank = 7;

  const auto created = Model::create(config, ops());

  EXPECT_EQ(created.has_value(), multiple == 1);
  if (!created) {
    EXPECT_NE(created.error().message().find("--lora"), std::string::npos) << created.error().message();
  }
}

TEST_P(ModelConformance, RefusesAHeadThatTheDeviceDoesNotCompute) {
  const auto created = [&](std::uint32_t head_width) {
    return Model::create({.layers = 1, .width = 2 * head_width, .heads = 2, .context = 4}, ops());
  };
  const auto [most, multiple, rank_multiple] = ops().limits();
  const bool has_most = most < 1u << 15;

  EXPECT_TRUE(created(multiple));
  EXPECT_EQ(created(multiple + 1).has_value(), multiple == 1);
  EXPECT_TRUE(created(has_most ? most : 1u << 15));
  if (has_most) {
    ASSERT_FALSE(created(most + multiple));
    EXPECT_NE(created(most + multiple).error().message().find("width of a head"), std::string::npos);
  }
}

TEST_P(ModelConformance, NamesTheTensorThatDoesNotFit) {
  Model model = Model::create(tiny, ops()).value();
  Activations activations =
      Activations::allocate(tiny, {.sequences = sequences, .operands = ops().operand_dtype()},
                            backend().allocator())
          .value()
          .front();
  const DeviceTensor tensors[] = {tensor(256 * 16), tensor(5 * 15)};

  const auto missing = model.forward(stream(), 0, std::span(tensors, 1), activations);
  const auto short_one = model.forward(stream(), 0, tensors, activations);
  const auto no_unit = model.forward(stream(), 9, tensors, activations);

  ASSERT_FALSE(missing || short_one || no_unit);
  EXPECT_EQ(short_one.error().code(), penstock::ErrorCode::invalid_argument);
  EXPECT_NE(short_one.error().message().find("embed.position_embedding"), std::string::npos);
}

}  // namespace
}  // namespace gpt::test
