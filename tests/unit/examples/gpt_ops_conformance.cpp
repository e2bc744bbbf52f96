// The contract of every Ops: forwards are compared with a plain double-precision reference, backwards with finite
// differences of the forward in fp32; rounding and accumulation of gradients bit for bit.
#include "gpt_backend.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gpt::test {
namespace {

using penstock::DType;

TEST_P(OpsConformance, AddsInPlace) {
  const Values x = random(33), y = random(33);
  const DeviceTensor sum = tensor(y);

  ops().add(stream(), tensor(x), sum);

  Values wanted = y;
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += x[i];
  EXPECT_EQ(read(sum), wanted);
}

TEST_P(OpsConformance, NormalisesEachRow) {
  const RowsSize size{3, 37};
  const Values x = random(3 * 37), gain = random(37), b = random(37);
  const DeviceTensor y = operand(x.size()), statistics = tensor(6);

  ops().layer_norm(stream(), size, tensor(x), tensor(gain), tensor(b), y, statistics);

  Values wanted;
  for (std::size_t row = 0; row < 3; ++row) {
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < 37; ++c) mean += x[row * 37 + c] / 37.0;
    for (std::size_t c = 0; c < 37; ++c) variance += std::pow(x[row * 37 + c] - mean, 2) / 37.0;
    for (std::size_t c = 0; c < 37; ++c) {
      wanted.push_back(
          static_cast<float>((x[row * 37 + c] - mean) / std::sqrt(variance + 1e-5) * gain[c] + b[c]));
    }
  }
  expect_near(read(y), wanted, tolerance(y));
}

TEST_P(OpsConformance, DifferentiatesTheLayerNormInPlace) {
  const RowsSize size{3, 37};
  const Values x = random(3 * 37), gain = random(37), b = random(37), dy = random(3 * 37);
  const DeviceTensor statistics = tensor(6), dgain = tensor(37), db = tensor(37), dx = tensor(dy);
  const auto forward = [&](const std::vector<Values>& in) {
    const DeviceTensor y = reference().tensor(x.size());
    reference().ops().layer_norm(reference().stream(), size, reference().tensor(in[0]),
                                 reference().tensor(in[1]), reference().tensor(in[2]), y,
                                 reference().tensor(6));
    return reference().read(y);
  };

  ops().layer_norm(stream(), size, tensor(x), tensor(gain), tensor(b), operand(x.size()), statistics);
  ops().layer_norm_backward(stream(), size,
                            {.x = tensor(x),
                             .gain = tensor(gain),
                             .statistics = statistics,
                             .dy = dx,
                             .dx = dx,
                             .dgain = {dgain},
                             .db = {db}});

  expect_gradients(forward, {x, gain, b}, dy, {read(dx), read(dgain), read(db)});
}

TEST_P(OpsConformance, NormalisesWithBf16ParametersAsWithTheirValues) {
  const RowsSize size{3, 37};
  const Values x = random(3 * 37), dy = random(3 * 37);
  const DeviceTensor gain = tensor(random(37), DType::bf16), b = tensor(random(37), DType::bf16);
  const DeviceTensor wide_gain = tensor(read(gain)), wide_b = tensor(read(b));
  const auto normalise = [&](DeviceTensor with_gain, DeviceTensor with_b) {
    const DeviceTensor statistics = tensor(6), y = operand(x.size()), dx = tensor(x.size());
    ops().layer_norm(stream(), size, tensor(x), with_gain, with_b, y, statistics);
    ops().layer_norm_backward(stream(), size,
                              {.x = tensor(x),
                               .gain = with_gain,
                               .statistics = statistics,
                               .dy = tensor(dy),
                               .dx = dx,
                               .dgain = {tensor(37)},
                               .db = {tensor(37)}});
    return std::pair(read(y), read(dx));
  };

  EXPECT_EQ(normalise(gain, b), normalise(wide_gain, wide_b));
}

TEST_P(OpsConformance, LeavesOutGradientsOfANormThatAreEmpty) {
  const RowsSize size{70, 24};
  const DeviceTensor x = tensor(random(70 * 24)), gain = tensor(random(24)), dy = tensor(random(70 * 24)),
                     statistics = tensor(140), db = tensor(24);
  ops().layer_norm(stream(), size, x, gain, tensor(random(24)), operand(70 * 24), statistics);
  const auto backward = [&](Gradient of_gain, Gradient of_b) {
    const DeviceTensor dx = tensor(70 * 24);
    ops().layer_norm_backward(
        stream(), size,
        {.x = x, .gain = gain, .statistics = statistics, .dy = dy, .dx = dx, .dgain = of_gain, .db = of_b});
    return read(dx);
  };
  const Values wanted = backward({tensor(24)}, {db}), wanted_b = read(db);

  EXPECT_EQ(backward({}, {}), wanted);
  backend().write(Values(24), db);
  EXPECT_EQ(backward({}, {db}), wanted);
  EXPECT_EQ(read(db), wanted_b);
}

TEST_P(OpsConformance, RoundsGradientsOfParametersOnceAndAddsThemToOldOnes) {
  const RowsSize size{70, 24};
  const Values x = random(70 * 24), dy = random(70 * 24), old = random(24);
  const DeviceTensor statistics = tensor(140);
  ops().layer_norm(stream(), size, tensor(x), tensor(random(24)), tensor(random(24)), operand(x.size()),
                   statistics);
  const auto gradient = [&](DeviceTensor into, GradientWrite write) {
    ops().layer_norm_backward(stream(), size,
                              {.x = tensor(x),
                               .gain = tensor(old),
                               .statistics = statistics,
                               .dy = tensor(dy),
                               .dx = tensor(x.size()),
                               .dgain = {into, write},
                               .db = {tensor(24)}});
    return read(into);
  };

  const Values exact = gradient(tensor(24), GradientWrite::overwrite);
  const DeviceTensor narrow_old = tensor(old, DType::bf16);
  const Values before = read(narrow_old);
  Values rounded = exact, narrow = exact, wide = exact;
  for (std::size_t i = 0; i < 24; ++i) {
    rounded[i] = nearest_bf16(exact[i]);
    narrow[i] = nearest_bf16(before[i] + exact[i]);
    wide[i] = old[i] + exact[i];
  }
  EXPECT_EQ(gradient(tensor(24, DType::bf16), GradientWrite::overwrite), rounded);
  EXPECT_EQ(gradient(narrow_old, GradientWrite::accumulate), narrow);
  EXPECT_EQ(gradient(tensor(old), GradientWrite::accumulate), wide);
}

TEST_P(OpsConformance, RoundsToOperands) {
  const Values x = {1.0f + 1.0f / 256, 1.0f + 3.0f / 256, -1.0f - 1.0f / 256, 0.0f, 3.0f};
  const DeviceTensor y = operand(x.size());

  ops().round(stream(), tensor(x), y);

  Values wanted = x;
  if (y.dtype == DType::bf16) std::transform(x.begin(), x.end(), wanted.begin(), nearest_bf16);
  EXPECT_EQ(read(y), wanted);
}

TEST_P(OpsConformance, EmbedsTokensAndPositions) {
  const EmbeddingSize size{.sequences = 2, .context = 3, .width = 5, .vocabulary = 11};
  const Values embedding = random(55), positions = random(15);
  const std::vector<std::uint8_t> tokens = {10, 0, 10, 4, 10, 1};
  const DeviceTensor y = tensor(30);

  ops().embed(stream(), size, bytes(tokens), tensor(embedding), tensor(positions), y);

  Values wanted;
  for (std::size_t row = 0; row < 6; ++row) {
    for (std::size_t c = 0; c < 5; ++c) {
      wanted.push_back(embedding[tokens[row] * std::size_t{5} + c] + positions[row % 3 * 5 + c]);
    }
  }
  EXPECT_EQ(read(y), wanted);
}

TEST_P(OpsConformance, SumsTheGradientsOfARepeatedTokenOntoTheOld) {
  const EmbeddingSize size{.sequences = 2, .context = 3, .width = 5, .vocabulary = 11};
  const Values dy = random(30), old = random(55);
  const std::vector<std::uint8_t> tokens = {10, 0, 10, 4, 10, 1};
  const DeviceTensor dembedding = tensor(55), dpositions = tensor(15), tied = tensor(old);
  const auto forward = [&](const std::vector<Values>& in) {
    const DeviceTensor y = tensor(30);
    ops().embed(stream(), size, bytes(tokens), tensor(in[0]), tensor(in[1]), y);
    return read(y);
  };

  ops().embed_backward(stream(), size, bytes(tokens), tensor(dy), {dembedding}, {dpositions});
  ops().embed_backward(stream(), size, bytes(tokens), tensor(dy), {tied, GradientWrite::accumulate},
                       {dpositions});

  expect_gradients(forward, {random(55), random(15)}, dy, {read(dembedding), read(dpositions)});
  Values wanted = read(dembedding);
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += old[i];
  EXPECT_EQ(read(tied), wanted);
}

TEST_P(OpsConformance, ComputesCrossEntropyWithoutOverflow) {
  const RowsSize size{3, 21};
  Values logits = random(63);
  for (std::size_t c = 0; c < 21; ++c) logits[21 + c] += 500;  // exp(500) overflows fp32
  const std::vector<std::uint8_t> targets = {20, 0, 7};
  const DeviceTensor losses = tensor(3);

  ops().cross_entropy(stream(), size, tensor(logits), bytes(targets), losses);

  Values wanted;
  for (std::size_t row = 0; row < 3; ++row) {
    double sum = 0;
    const double target = logits[row * 21 + targets[row]];
    for (std::size_t c = 0; c < 21; ++c) sum += std::exp(logits[row * 21 + c] - target);
    wanted.push_back(static_cast<float>(std::log(sum)));
  }
  expect_near(read(losses), wanted, 1e-4);
}

TEST_P(OpsConformance, DifferentiatesTheScaledCrossEntropyInPlaceIfItMay) {
  const RowsSize size{3, 21};
  const Values logits = random(63);
  const std::vector<std::uint8_t> targets = {20, 0, 7};
  const DeviceTensor from = tensor(logits),
                     dlogits = ops().operand_dtype() == DType::fp32 ? from : operand(63);
  const auto forward = [&](const std::vector<Values>& in) {
    const DeviceTensor losses = tensor(3);
    ops().cross_entropy(stream(), size, tensor(in[0]), bytes(targets), losses);
    return read(losses);
  };

  ops().cross_entropy_backward(stream(), size, from, bytes(targets), 0.75f, dlogits);

  expect_gradients(forward, {logits}, {0.75f, 0.75f, 0.75f}, {read(dlogits)});
}

}  // namespace
}  // namespace gpt::test
