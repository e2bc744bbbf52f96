// The contract of every Ops: forwards are compared with a plain double-precision reference, backwards with finite
// differences of the forward; rounding and accumulation of gradients bit for bit.
#include "gpt_backend.hpp"

#include <algorithm>
#include <cmath>

namespace gpt::test {
namespace {

using penstock::DType;

constexpr MatmulSize matmul_sizes[] = {{1, 1, 1}, {3, 5, 2}, {4, 33, 17}};

TEST_P(OpsConformance, MultipliesByTheTransposedWeight) {
  for (const MatmulSize size : matmul_sizes) {
    const Values x = random(size.rows * size.inputs), w = random(size.outputs * size.inputs);
    const DeviceTensor y = tensor(size.rows * size.outputs);

    ops().matmul(stream(), size, tensor(x), tensor(w), y);

    Values wanted;
    for (std::size_t row = 0; row < size.rows; ++row) {
      for (std::size_t out = 0; out < size.outputs; ++out) {
        double sum = 0;
        for (std::size_t in = 0; in < size.inputs; ++in) {
          sum += double{x[row * size.inputs + in]} * w[out * size.inputs + in];
        }
        wanted.push_back(static_cast<float>(sum));
      }
    }
    expect_near(read(y), wanted, 1e-5);
  }
}

TEST_P(OpsConformance, ReadsABf16WeightAsItsValue) {
  const MatmulSize size{4, 33, 17};
  const Values x = random(4 * 33), w = random(17 * 33), dy = random(4 * 17);
  const DeviceTensor narrow = tensor(w, DType::bf16), wide = tensor(read(narrow));
  const DeviceTensor y[] = {tensor(4 * 17), tensor(4 * 17)}, dx[] = {tensor(4 * 33), tensor(4 * 33)};

  ops().matmul(stream(), size, tensor(x), narrow, y[0]);
  ops().matmul(stream(), size, tensor(x), wide, y[1]);
  ops().matmul_input_gradient(stream(), size, tensor(dy), narrow, dx[0]);
  ops().matmul_input_gradient(stream(), size, tensor(dy), wide, dx[1]);

  EXPECT_EQ(read(y[0]), read(y[1]));
  EXPECT_EQ(read(dx[0]), read(dx[1]));
}

TEST_P(OpsConformance, DifferentiatesTheMatmul) {
  for (const MatmulSize size : matmul_sizes) {
    const Values x = random(size.rows * size.inputs), w = random(size.outputs * size.inputs);
    const Values dy = random(size.rows * size.outputs);
    const DeviceTensor dx = tensor(x.size()), dw = tensor(w.size());

    ops().matmul_input_gradient(stream(), size, tensor(dy), tensor(w), dx);
    ops().matmul_weight_gradient(stream(), size, tensor(dy), tensor(x), {dw});

    const auto forward = [&](const std::vector<Values>& in) {
      const DeviceTensor y = tensor(dy.size());
      ops().matmul(stream(), size, tensor(in[0]), tensor(in[1]), y);
      return read(y);
    };
    expect_gradients(forward, {x, w}, dy, {read(dx), read(dw)});
  }
}

TEST_P(OpsConformance, RoundsABf16GradientOnceToNearestEven) {
  const MatmulSize size{1, 7, 40};
  const Values x = random(7), dy = random(40);
  const DeviceTensor exact = tensor(280), rounded = tensor(280, DType::bf16);

  ops().matmul_weight_gradient(stream(), size, tensor(dy), tensor(x), {exact});
  ops().matmul_weight_gradient(stream(), size, tensor(dy), tensor(x), {rounded});

  Values wanted = read(exact);
  std::transform(wanted.begin(), wanted.end(), wanted.begin(), nearest_bf16);
  EXPECT_EQ(read(rounded), wanted);
}

TEST_P(OpsConformance, RoundsTiesToEven) {
  // 1 + 1/256 and 1 + 3/256 lie halfway between two bf16 values.
  const Values dy = {1.0f + 1.0f / 256, 1.0f + 3.0f / 256, -1.0f - 1.0f / 256};
  const DeviceTensor db = tensor(3, DType::bf16);

  ops().bias_gradient(stream(), {1, 3}, tensor(dy), {db});

  EXPECT_EQ(read(db), (Values{1.0f, 1.0f + 4.0f / 256, -1.0f}));
}

TEST_P(OpsConformance, AccumulatesTheSumOfOldAndNewRoundedOnce) {
  const MatmulSize size{1, 7, 40};
  const Values x = random(7), dy = random(40), old = random(280);
  const DeviceTensor exact = tensor(280), narrow = tensor(old, DType::bf16), wide = tensor(old);
  const Values old_narrow = read(narrow);

  ops().matmul_weight_gradient(stream(), size, tensor(dy), tensor(x), {exact});
  ops().matmul_weight_gradient(stream(), size, tensor(dy), tensor(x), {narrow, GradientWrite::accumulate});
  ops().matmul_weight_gradient(stream(), size, tensor(dy), tensor(x), {wide, GradientWrite::accumulate});

  Values wanted_narrow = read(exact), wanted_wide = wanted_narrow;
  for (std::size_t i = 0; i < 280; ++i) {
    wanted_narrow[i] = nearest_bf16(old_narrow[i] + wanted_narrow[i]);
    wanted_wide[i] = old[i] + wanted_wide[i];
  }
  EXPECT_EQ(read(narrow), wanted_narrow);
  EXPECT_EQ(read(wide), wanted_wide);
}

TEST_P(OpsConformance, AddsTheBiasToEachRowAndSumsItsGradientOverRows) {
  const RowsSize size{5, 19};
  const Values b = random(19), start = random(5 * 19), dy = random(5 * 19);
  const DeviceTensor db = tensor(19);
  const auto forward = [&](const std::vector<Values>& in) {
    const DeviceTensor y = tensor(start);
    ops().add_bias(stream(), size, tensor(in[0]), y);
    return read(y);
  };

  ops().bias_gradient(stream(), size, tensor(dy), {db});

  Values wanted = start;
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += b[i % 19];
  EXPECT_EQ(forward({b}), wanted);
  expect_gradients(forward, {b}, dy, {read(db)});
}

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
  const DeviceTensor y = tensor(x.size()), statistics = tensor(6);

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
  expect_near(read(y), wanted, 1e-5);
}

TEST_P(OpsConformance, DifferentiatesTheLayerNormInPlace) {
  const RowsSize size{3, 37};
  const Values x = random(3 * 37), gain = random(37), b = random(37), dy = random(3 * 37);
  const DeviceTensor statistics = tensor(6), dgain = tensor(37), db = tensor(37), dx = tensor(dy);
  const auto forward = [&](const std::vector<Values>& in) {
    const DeviceTensor y = tensor(x.size());
    ops().layer_norm(stream(), size, tensor(in[0]), tensor(in[1]), tensor(in[2]), y, statistics);
    return read(y);
  };

  forward({x, gain, b});
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

Values gelu_arguments() {
  Values x = {-100.0f, -30.0f, 0.0f, 30.0f, 100.0f};
  for (int i = -40; i <= 40; ++i) x.push_back(0.15f * static_cast<float>(i));
  return x;
}

TEST_P(OpsConformance, ComputesTheTanhFormOfGeluFarIntoBothTails) {
  const Values x = gelu_arguments();
  const DeviceTensor y = tensor(x.size());

  ops().gelu(stream(), tensor(x), y);

  Values wanted;
  for (const double v : x) {
    wanted.push_back(static_cast<float>(
        0.5 * v * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (v + 0.044715 * v * v * v)))));
  }
  expect_near(read(y), wanted, 2e-6);
}

TEST_P(OpsConformance, DifferentiatesGeluInPlace) {
  const Values x = gelu_arguments(), dy = random(x.size());
  const DeviceTensor dx = tensor(dy);
  const auto forward = [&](const std::vector<Values>& in) {
    const DeviceTensor y = tensor(x.size());
    ops().gelu(stream(), tensor(in[0]), y);
    return read(y);
  };

  ops().gelu_backward(stream(), tensor(x), dx, dx);

  expect_gradients(forward, {x}, dy, {read(dx)});
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

TEST_P(OpsConformance, DifferentiatesTheScaledCrossEntropyInPlace) {
  const RowsSize size{3, 21};
  const Values logits = random(63);
  const std::vector<std::uint8_t> targets = {20, 0, 7};
  const DeviceTensor dlogits = tensor(logits);
  const auto forward = [&](const std::vector<Values>& in) {
    const DeviceTensor losses = tensor(3);
    ops().cross_entropy(stream(), size, tensor(in[0]), bytes(targets), losses);
    return read(losses);
  };

  ops().cross_entropy_backward(stream(), size, dlogits, bytes(targets), 0.75f, dlogits);

  expect_gradients(forward, {logits}, {0.75f, 0.75f, 0.75f}, {read(dlogits)});
}

}  // namespace
}  // namespace gpt::test
