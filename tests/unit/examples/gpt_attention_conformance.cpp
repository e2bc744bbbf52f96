// The attention of every Ops, each element against a plain double-precision reference.
#include "gpt_backend.hpp"

#include <algorithm>
#include <cmath>

namespace gpt::test {
namespace {

using Reals = std::vector<double>;

/// Attention of one head of one sequence with all its scores, forward and backward. Rows of the matrices are tokens.
class ReferenceHead {
 public:
  ReferenceHead(AttentionSize size, std::size_t sequence, std::size_t head, const Values& qkv)
      : size_(size),
        width_(size.width / size.heads),
        first_row_(sequence * size.context),
        first_(head * width_) {
    for (std::size_t part = 0; part < 3; ++part) parts_[part] = columns_of(qkv, 3, part);
    const std::size_t context = size.context;
    p_.assign(context * context, 0);
    for (std::size_t row = 0; row < context; ++row) {
      double largest = -INFINITY, sum = 0;
      for (std::size_t other = 0; other <= row; ++other) {
        p_[row * context + other] = scale() * dot(parts_[0], row, parts_[1], other);
        largest = std::max(largest, p_[row * context + other]);
      }
      for (std::size_t other = 0; other <= row; ++other) {
        p_[row * context + other] = std::exp(p_[row * context + other] - largest);
        sum += p_[row * context + other];
      }
      for (std::size_t other = 0; other <= row; ++other) p_[row * context + other] /= sum;
      log_sums_.push_back(largest + std::log(sum));
    }
  }

  [[nodiscard]] const Reals& log_sums() const { return log_sums_; }

  void write_output(Values& y) const {
    Reals out(size_.context * width_);
    for_visible([&](std::size_t row, std::size_t other, double p) {
      for (std::size_t c = 0; c < width_; ++c) out[row * width_ + c] += p * parts_[2][other * width_ + c];
    });
    put(out, 1, 0, y);
  }

  void write_gradients(const Values& dy, Values& dqkv) const {
    const Reals dout = columns_of(dy, 1, 0);
    Reals projections(size_.context);
    for_visible([&](std::size_t row, std::size_t other, double p) {
      projections[row] += p * dot(dout, row, parts_[2], other);
    });
    std::vector<Reals> gradients(3, Reals(size_.context * width_));
    for_visible([&](std::size_t row, std::size_t other, double p) {
      const double ds = scale() * p * (dot(dout, row, parts_[2], other) - projections[row]);
      for (std::size_t c = 0; c < width_; ++c) {
        gradients[0][row * width_ + c] += ds * parts_[1][other * width_ + c];
        gradients[1][other * width_ + c] += ds * parts_[0][row * width_ + c];
        gradients[2][other * width_ + c] += p * dout[row * width_ + c];
      }
    });
    for (std::size_t part = 0; part < 3; ++part) put(gradients[part], 3, part, dqkv);
  }

 private:
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(width_)); }
  [[nodiscard]] double dot(const Reals& a, std::size_t row_a, const Reals& b, std::size_t row_b) const {
    double sum = 0;
    for (std::size_t c = 0; c < width_; ++c) sum += a[row_a * width_ + c] * b[row_b * width_ + c];
    return sum;
  }
  template <class Body>
  void for_visible(const Body& body) const {
    for (std::size_t row = 0; row < size_.context; ++row) {
      for (std::size_t other = 0; other <= row; ++other) body(row, other, p_[row * size_.context + other]);
    }
  }
  /// Where an element of this head is in a matrix of `parts` matrices of the model's width side by side.
  [[nodiscard]] std::size_t index(std::size_t parts, std::size_t part, std::size_t row, std::size_t c) const {
    return (first_row_ + row) * parts * size_.width + part * size_.width + first_ + c;
  }
  [[nodiscard]] Reals columns_of(const Values& from, std::size_t parts, std::size_t part) const {
    Reals result;
    for (std::size_t row = 0; row < size_.context; ++row) {
      for (std::size_t c = 0; c < width_; ++c) result.push_back(from[index(parts, part, row, c)]);
    }
    return result;
  }
  void put(const Reals& from, std::size_t parts, std::size_t part, Values& to) const {
    for (std::size_t row = 0; row < size_.context; ++row) {
      for (std::size_t c = 0; c < width_; ++c) {
        to[index(parts, part, row, c)] = static_cast<float>(from[row * width_ + c]);
      }
    }
  }

  const AttentionSize size_;
  const std::size_t width_, first_row_, first_;
  Reals parts_[3], p_, log_sums_;
};

}  // namespace

void AttentionConformance::expect_reference(AttentionSize size, const Values& qkv) {
  SCOPED_TRACE("context " + std::to_string(size.context) + ", width " + std::to_string(size.width));
  const std::size_t rows = std::size_t{size.sequences} * size.context, statistics = rows * size.heads;
  const Values dy = random_bf16(rows * size.width);
  const DeviceTensor in = operand(qkv), log_sums = tensor(statistics), y = operand(dy.size());
  const DeviceTensor projections = tensor(statistics), dqkv = operand(qkv.size());

  ops().attention(stream(), size, in, log_sums, y);
  ops().attention_backward(
      stream(), size,
      {.qkv = in, .log_sums = log_sums, .y = y, .dy = operand(dy), .projections = projections, .dqkv = dqkv});

  Values wanted(dy.size()), wanted_sums, wanted_gradients(qkv.size());
  for (std::size_t sequence = 0; sequence < size.sequences; ++sequence) {
    for (std::size_t head = 0; head < size.heads; ++head) {
      const ReferenceHead reference(size, sequence, head, qkv);
      reference.write_output(wanted);
      reference.write_gradients(dy, wanted_gradients);
      wanted_sums.insert(wanted_sums.end(), reference.log_sums().begin(), reference.log_sums().end());
    }
  }
  expect_near(read(y), wanted, tolerance_of_several());
  expect_near(read(log_sums), wanted_sums, 1e-5);
  expect_near(read(dqkv), wanted_gradients, tolerance_of_several());
}

namespace {

TEST_P(AttentionConformance, IsTheReferenceOnBothSidesOfATilesEnd) {
  for (const std::uint32_t context : {1u, 2u, 63u, 64u, 65u, 3 * 64 + 5u}) {
    const AttentionSize size{
        .sequences = context < 10 ? 2u : 1u, .context = context, .heads = 2, .width = 16};

    expect_reference(size, random_bf16(std::size_t{size.sequences} * context * 3 * size.width));
  }
}

TEST_P(AttentionConformance, IsTheReferenceForEachWidthOfAHead) {
  for (const std::uint32_t head_width : {8u, 16u, 24u, 64u, 80u, 128u}) {
    const AttentionSize size{.sequences = 1, .context = 33, .heads = 2, .width = 2 * head_width};

    expect_reference(size, random_bf16(std::size_t{size.context} * 3 * size.width));
  }
}

TEST_P(AttentionConformance, ComputesLargeScoresWithoutOverflow) {
  // Scores up to a few hundred, which grow along the context: the largest of a row changes with the tiles.
  const AttentionSize size{.sequences = 1, .context = 130, .heads = 1, .width = 8};
  Values qkv = random_bf16(std::size_t{size.context} * 24, 6);
  for (std::size_t row = 0; row < size.context; ++row) {
    for (std::size_t c = 0; c < 16; ++c)
      qkv[row * 24 + c] = nearest_bf16(qkv[row * 24 + c] * static_cast<float>(row) / 64);
  }
  const DeviceTensor y = operand(std::size_t{size.context} * size.width), log_sums = tensor(size.context);

  ops().attention(stream(), size, operand(qkv), log_sums, y);

  Values wanted(std::size_t{size.context} * size.width);
  const ReferenceHead reference(size, 0, 0, qkv);
  reference.write_output(wanted);
  ASSERT_GT(*std::max_element(reference.log_sums().begin(), reference.log_sums().end()), 100);
  expect_near(read(y), wanted, 4 * tolerance_of_several());
  expect_near(read(log_sums), {reference.log_sums().begin(), reference.log_sums().end()}, 1e-5);
}

TEST_P(AttentionConformance, GivesTheSameBitsEachTime) {
  const AttentionSize size{.sequences = 1, .context = 70, .heads = 2, .width = 32};
  const Values qkv = random(std::size_t{70} * 96), dy = random(std::size_t{70} * 32);
  Values first;
  for (int time = 0; time < 2; ++time) {
    const DeviceTensor in = operand(qkv), log_sums = tensor(140), y = operand(dy.size()),
                       dqkv = operand(qkv.size());

    ops().attention(stream(), size, in, log_sums, y);
    ops().attention_backward(stream(), size,
                             {.qkv = in,
                              .log_sums = log_sums,
                              .y = y,
                              .dy = operand(dy),
                              .projections = tensor(140),
                              .dqkv = dqkv});

    if (time == 0) first = read(dqkv);
    EXPECT_EQ(read(dqkv), first);
  }
}

}  // namespace
}  // namespace gpt::test
