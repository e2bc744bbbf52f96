// The matrix products of every Ops, each element against a plain double-precision reference. Inputs are exact as
// operands, so that results in fp32 differ from the reference by the order of sums alone.
#include "gpt_backend.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gpt::test {
namespace {

using penstock::DType;
using Reals = std::vector<double>;

constexpr MatmulSize sizes[] = {
    {1, 8, 8}, {3, 16, 24}, {37, 40, 8}, {.rows = 37, .inputs = 40, .outputs = 16, .scale = 0.375f}};

/// A matrix product with an index function for each operand.
template <class Left, class Right>
Reals product(std::size_t rows, std::size_t columns, std::size_t inner, Left left, Right right) {
  Reals result;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      double sum = 0;
      for (std::size_t k = 0; k < inner; ++k) sum += double{left(row, k)} * right(k, column);
      result.push_back(sum);
    }
  }
  return result;
}

Values narrow(const Reals& values) {
  return {values.begin(), values.end()};
}

double gelu(double u) {
  return 0.5 * u * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (u + 0.044715 * u * u * u)));
}
double gelu_slope(double u) {
  constexpr double h = 1e-4;
  return (gelu(u + h) - gelu(u - h)) / (2 * h);
}

}  // namespace

/// A layer's inputs and the gradient of its output.
struct LinearConformance::Layer {
  MatmulSize size;
  Values x, w, b, dy;

  /// scale · x · wᵀ + b.
  [[nodiscard]] Reals output() const {
    Reals y = product(
        size.rows, size.outputs, size.inputs,
        [&](std::size_t row, std::size_t k) { return x[row * size.inputs + k]; },
        [&](std::size_t k, std::size_t column) { return w[column * size.inputs + k]; });
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = size.scale * y[i] + b[i % size.outputs];
    return y;
  }
  /// scale · dy · w.
  [[nodiscard]] Reals input_gradient() const {
    return product(
        size.rows, size.inputs, size.outputs,
        [&](std::size_t row, std::size_t k) { return size.scale * dy[row * size.outputs + k]; },
        [&](std::size_t k, std::size_t column) { return w[k * size.inputs + column]; });
  }
  /// scale · dyᵀ · x.
  [[nodiscard]] Reals weight_gradient() const {
    return product(
        size.outputs, size.inputs, size.rows,
        [&](std::size_t row, std::size_t k) { return size.scale * dy[k * size.outputs + row]; },
        [&](std::size_t k, std::size_t column) { return x[k * size.inputs + column]; });
  }
  [[nodiscard]] Reals bias_gradient() const {
    Reals sums(size.outputs);
    for (std::size_t i = 0; i < dy.size(); ++i) sums[i % size.outputs] += dy[i];
    return sums;
  }
};

LinearConformance::Layer LinearConformance::random_layer(MatmulSize size) {
  return {size, random_bf16(size.rows * size.inputs), random_bf16(size.outputs * size.inputs),
          random_bf16(size.outputs), random_bf16(size.rows * size.outputs)};
}

TEST_P(LinearConformance, MultipliesByTheTransposedWeightAndAddsTheBias) {
  for (const MatmulSize size : sizes) {
    const Layer layer = random_layer(size);
    for (const DType dtype : {DType::fp32, ops().operand_dtype()}) {
      for (const DType parameters : {DType::fp32, DType::bf16}) {
        const DeviceTensor y = tensor(size.rows * size.outputs, dtype);

        ops().linear(stream(), size,
                     {operand(layer.x), tensor(layer.w, parameters), tensor(layer.b, parameters)}, y);

        expect_near(read(y), narrow(layer.output()), tolerance(y));
      }
    }
  }
}

TEST_P(LinearConformance, LeavesOutABiasThatIsEmpty) {
  const MatmulSize size{3, 16, 24};
  const Layer layer{size, random_bf16(48), random_bf16(384), Values(24), {}};
  const DeviceTensor y = tensor(72);

  ops().linear(stream(), size, {operand(layer.x), tensor(layer.w), {}}, y);

  expect_near(read(y), narrow(layer.output()), 1e-5);
}

TEST_P(LinearConformance, RoundsAnFp32WeightToAnOperand) {
  const MatmulSize size{3, 16, 24};
  const Values x = random_bf16(48), w = random(384);
  const DeviceTensor y = tensor(72);

  ops().linear(stream(), size, {operand(x), tensor(w), {}}, y);

  Layer layer{size, x, w, Values(24), {}};
  if (ops().operand_dtype() == DType::bf16) std::transform(w.begin(), w.end(), layer.w.begin(), nearest_bf16);
  expect_near(read(y), narrow(layer.output()), 1e-5);
}

TEST_P(LinearConformance, AddsTheResidualStream) {
  for (const MatmulSize size : sizes) {
    const Layer layer = random_layer(size);
    const Values residual = random(size.rows * size.outputs);
    for (const DType parameters : {DType::fp32, DType::bf16}) {
      const DeviceTensor y = tensor(residual.size());

      ops().linear_add(stream(), size,
                       {operand(layer.x), tensor(layer.w, parameters), tensor(layer.b, parameters)},
                       tensor(residual), y);

      Reals wanted = layer.output();
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += residual[i];
      expect_near(read(y), narrow(wanted), 1e-5);
    }
  }
}

TEST_P(LinearConformance, AddsToAnOperandOrTheResidualStreamInPlaceAndWithoutABias) {
  for (const MatmulSize size : sizes) {
    const Layer layer{size,
                      random_bf16(size.rows * size.inputs),
                      random_bf16(size.outputs * size.inputs),
                      Values(size.outputs),
                      {}};
    const Values old = random_bf16(size.rows * size.outputs);
    for (const DType dtype : {DType::fp32, ops().operand_dtype()}) {
      const DeviceTensor y = tensor(old, dtype);

      ops().linear_add(stream(), size, {operand(layer.x), tensor(layer.w), {}}, y, y);

      Reals wanted = layer.output();
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += old[i];
      expect_near(read(y), narrow(wanted), tolerance_of_product(y));
    }
  }
}

TEST_P(LinearConformance, ComputesTheTanhFormOfGeluFarIntoBothTails) {
  const MatmulSize size{37, 40, 8};
  Layer layer{size, random_bf16(37 * 40, 2), random_bf16(8 * 40), random_bf16(8), {}};
  for (std::size_t c = 0; c < 40; ++c) {  // two rows far out
    layer.x[c] *= 16;
    layer.x[40 + c] *= -16;
  }
  const DeviceTensor up = operand(37 * 8), y = operand(37 * 8);

  ops().linear_gelu(stream(), size, {operand(layer.x), tensor(layer.w), tensor(layer.b)}, up, y);

  Reals wanted = layer.output();
  EXPECT_GT(*std::max_element(wanted.begin(), wanted.end()), 30);
  EXPECT_LT(*std::min_element(wanted.begin(), wanted.end()), -30);
  expect_near(read(up), narrow(wanted), tolerance(up));
  std::transform(wanted.begin(), wanted.end(), wanted.begin(), gelu);
  expect_near(read(y), narrow(wanted), tolerance(y));
}

TEST_P(LinearConformance, ComputesTheInputsGradient) {
  for (const MatmulSize size : sizes) {
    const Layer layer = random_layer(size);
    for (const DType dtype : {DType::fp32, ops().operand_dtype()}) {
      for (const DType parameters : {DType::fp32, DType::bf16}) {
        const DeviceTensor dx = tensor(size.rows * size.inputs, dtype);

        ops().linear_backward(stream(), size, operand(layer.dy), tensor(layer.w, parameters), {dx});

        expect_near(read(dx), narrow(layer.input_gradient()), tolerance(dx));
      }
    }
  }
}

TEST_P(LinearConformance, ComputesTheGradientThroughGelu) {
  for (const MatmulSize size : sizes) {
    const Layer layer = random_layer(size);
    const Values up = random_bf16(size.rows * size.inputs, 5);
    const DeviceTensor dup = operand(up.size());

    ops().linear_gelu_backward(stream(), size, operand(layer.dy), tensor(layer.w), operand(up), dup);

    Reals wanted = layer.input_gradient();
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] *= gelu_slope(up[i]);
    expect_near(read(dup), narrow(wanted), tolerance_of_product(dup));
  }
}

TEST_P(LinearConformance, ComputesTheParametersGradients) {
  for (const MatmulSize size : sizes) {
    const Layer layer = random_layer(size);
    const DeviceTensor dw = tensor(size.outputs * size.inputs), db = tensor(size.outputs),
                       alone = tensor(dw.count().value());

    ops().linear_gradients(stream(), size, operand(layer.dy), operand(layer.x), {dw}, {db});
    ops().linear_gradients(stream(), size, operand(layer.dy), operand(layer.x), {alone}, {});

    expect_near(read(dw), narrow(layer.weight_gradient()), 1e-5);
    expect_near(read(db), narrow(layer.bias_gradient()), 1e-5);
    EXPECT_EQ(read(alone), read(dw));
  }
}

/// The rows of a layer's matrix in two blocks, and the layer whose results the blocks must give together.
struct BlocksOfALayer {
  static constexpr MatmulSize whole{37, 40, 24};
  static constexpr MatmulSize blocks[] = {{37, 40, 8, 0, 24}, {37, 40, 16, 8, 24}};
  static Values rows(const Values& all, MatmulSize block, std::size_t columns) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(block.first * columns);
    return {first, first + static_cast<std::ptrdiff_t>(block.outputs * columns)};
  }
};

TEST_P(LinearConformance, GivesTheColumnsOfARowBlock) {
  using In = BlocksOfALayer;
  const Layer layer{In::whole, random_bf16(37 * 40), random_bf16(24 * 40), random_bf16(24), {}};
  const Values residual = random(37 * 24);
  const DeviceTensor x = operand(layer.x), old = tensor(residual);
  const DeviceTensor plain = tensor(37 * 24), added = tensor(37 * 24), up = operand(37 * 24),
                     activated = operand(37 * 24);

  for (const MatmulSize block : In::blocks) {
    const Ops::Linear in{x, tensor(In::rows(layer.w, block, 40)), tensor(In::rows(layer.b, block, 1))};
    ops().linear(stream(), block, in, plain);
    ops().linear_add(stream(), block, in, old, added);
    ops().linear_gelu(stream(), block, in, up, activated);
  }

  Reals wanted = layer.output();
  expect_near(read(plain), narrow(wanted), 1e-5);
  expect_near(read(up), narrow(wanted), tolerance(up));
  Reals sum = wanted, gelus = wanted;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += residual[i];
  expect_near(read(added), narrow(sum), 1e-5);
  std::transform(gelus.begin(), gelus.end(), gelus.begin(), gelu);
  expect_near(read(activated), narrow(gelus), tolerance(activated));
}

TEST_P(LinearConformance, AddsUpTheInputsGradientsOfRowBlocks) {
  using In = BlocksOfALayer;
  const Layer layer{In::whole, random_bf16(37 * 40), random_bf16(24 * 40), {}, random_bf16(37 * 24)};
  const DeviceTensor dx = tensor(37 * 40), dy = operand(layer.dy), x = operand(layer.x);
  Values dw, db, db_again;

  for (const MatmulSize block : In::blocks) {
    const DeviceTensor of_w = tensor(block.outputs * 40), of_b = tensor(block.outputs),
                       added_to = tensor(Values(block.outputs, 1));
    ops().linear_backward(stream(), block, dy, tensor(In::rows(layer.w, block, 40)),
                          {dx, block.first == 0 ? GradientWrite::overwrite : GradientWrite::accumulate});
    ops().linear_gradients(stream(), block, dy, x, {of_w}, {of_b});
    ops().linear_gradients(stream(), block, dy, x, {of_w}, {added_to, GradientWrite::accumulate});
    for (auto [values, of] : {std::pair(&dw, of_w), {&db, of_b}, {&db_again, added_to}}) {
      const Values of_block = read(of);
      values->insert(values->end(), of_block.begin(), of_block.end());
    }
  }

  expect_near(read(dx), narrow(layer.input_gradient()), 1e-5);
  expect_near(dw, narrow(layer.weight_gradient()), 1e-5);
  expect_near(db, narrow(layer.bias_gradient()), 1e-5);
  for (float& sum : db_again) sum -= 1;
  expect_near(db_again, narrow(layer.bias_gradient()), 1e-5);
}

TEST_P(LinearConformance, LeavesOutGradientsThatAreEmpty) {
  const Layer layer = random_layer({37, 40, 8});
  const DeviceTensor dy = operand(layer.dy), x = operand(layer.x), db = tensor(8);

  ops().linear_gradients(stream(), layer.size, dy, x, {}, {});
  ops().linear_gradients(stream(), layer.size, dy, x, {}, {db});

  expect_near(read(db), narrow(layer.bias_gradient()), 1e-5);
}

TEST_P(LinearConformance, ComputesTheGradientThroughGeluAlone) {
  const Values dy = random(200), up = random_bf16(200, 6);
  const DeviceTensor dup = operand(200);

  ops().gelu_backward(stream(), tensor(dy), operand(up), dup);

  Reals wanted(dy.begin(), dy.end());
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] *= gelu_slope(up[i]);
  expect_near(read(dup), narrow(wanted), tolerance(dup));
}

TEST_P(LinearConformance, RoundsABf16GradientOnceToNearestEven) {
  const MatmulSize size{1, 8, 40};  // of one row: no order of sums
  const Values x = random_bf16(8), dy = random_bf16(40);
  const DeviceTensor exact = tensor(320), rounded = tensor(320, DType::bf16), db = tensor(40, DType::bf16);

  ops().linear_gradients(stream(), size, operand(dy), operand(x), {exact}, {tensor(40)});
  ops().linear_gradients(stream(), size, operand(dy), operand(x), {rounded}, {db});

  Values wanted = read(exact);
  std::transform(wanted.begin(), wanted.end(), wanted.begin(), nearest_bf16);
  EXPECT_EQ(read(rounded), wanted);
  EXPECT_EQ(read(db), dy);
}

TEST_P(LinearConformance, AddsAGradientToTheOldOneRoundedOnce) {
  const MatmulSize size{1, 8, 40};
  const Values x = random_bf16(8), dy = random_bf16(40), old = random(320), old_b = random(40);
  const DeviceTensor exact = tensor(320);
  ops().linear_gradients(stream(), size, operand(dy), operand(x), {exact}, {tensor(40)});
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const DeviceTensor dw = tensor(old, dtype), db = tensor(old_b, dtype);
    Values wanted = read(dw), wanted_b = read(db);

    ops().linear_gradients(stream(), size, operand(dy), operand(x), {dw, GradientWrite::accumulate},
                           {db, GradientWrite::accumulate});

    const auto sum = [&](float a, float b) { return dtype == DType::bf16 ? nearest_bf16(a + b) : a + b; };
    const Values added = read(exact);
    for (std::size_t i = 0; i < 320; ++i) wanted[i] = sum(wanted[i], added[i]);
    for (std::size_t i = 0; i < 40; ++i) wanted_b[i] = sum(wanted_b[i], dy[i]);
    EXPECT_EQ(read(dw), wanted);
    EXPECT_EQ(read(db), wanted_b);
  }
}

}  // namespace gpt::test
