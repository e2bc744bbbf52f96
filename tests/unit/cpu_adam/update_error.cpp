#include "update_error.hpp"

#include <gtest/gtest.h>
#include <cmath>
#include <deque>

namespace penstock::test {
namespace {

constexpr AdamConfig config{.learning_rate = 1e-3f, .epsilon = 1e-15f};
constexpr std::size_t run = 256;  // elements that share scales in split_q8
constexpr float drift = 0.3f;

bool counts_all(std::size_t) {
  return true;
}
float noise(Random& random) {
  return std::normal_distribution<float>(drift)(random);
}

/// Standard deviations are spread over 1e-8 to 1 in each run, evenly in their logarithms. Counts those above 10^low and
/// up to 10^high.
GradientSeries noise_of_all_scales(int low, int high) {
  const auto exponent = [](std::size_t i) { return -8.0 * static_cast<double>(i * 101 % run) / (run - 1); };
  return {"scales 1e-8 to 1, 1e" + std::to_string(low) + " to 1e" + std::to_string(high),
          [=](Random& random, std::size_t i, std::uint64_t) {
            return static_cast<float>(std::pow(10.0, exponent(i))) * noise(random);
          },
          [=](std::size_t i) { return exponent(i) > low && exponent(i) <= high; }};
}

/// Adam in double.
class Reference {
 public:
  explicit Reference(std::size_t elements) : m_(elements), v_(elements), changes_(elements) {}

  void step(std::uint64_t number, std::span<const float> gradient) {
    const double beta1 = config.beta1, beta2 = config.beta2, steps = static_cast<double>(number);
    const double correction1 = 1 - std::pow(beta1, steps), correction2 = 1 - std::pow(beta2, steps);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double g = gradient[i];
      m_[i] = beta1 * m_[i] + (1 - beta1) * g;
      v_[i] = beta2 * v_[i] + (1 - beta2) * g * g;
      changes_[i] = -double{config.learning_rate} * (m_[i] / correction1) /
                    (std::sqrt(v_[i] / correction2) + double{config.epsilon});
    }
  }
  /// By which the last step changed the masters.
  [[nodiscard]] const std::vector<double>& changes() const { return changes_; }

 private:
  std::vector<double> m_, v_, changes_;
};

/// A tile of a kind with 16-bit parameters.
class Trainee {
 public:
  Trainee(const TileKind& kind, std::size_t elements)
      : state_(tile_bytes(kind.format, ElementCount(elements)).value().value() / sizeof(float) + 1),
        parameter_(elements),
        masters_(elements),
        kind_(kind) {
    EXPECT_TRUE(initialize_tile(ConstHostSpan(std::span(masters_)), DType::fp32, tile()).has_value());
  }

  void step(std::uint64_t number, std::span<const float> gradient) {
    AdamTile updated = tile();
    updated.gradient = ConstHostSpan(gradient);
    EXPECT_TRUE(adam_step(config, number, 1.0f, updated).has_value());
    before_ = masters_;
    EXPECT_TRUE(read_states(tile(), StateKind::master, ElementCount(0), masters_).has_value());
  }
  /// By which the last step changed master i.
  [[nodiscard]] double change(std::size_t i) const { return double{masters_[i]} - before_[i]; }
  /// Since the start, when all were 0.
  [[nodiscard]] double travel(std::size_t i) const { return masters_[i]; }

 private:
  [[nodiscard]] AdamTile tile() {
    const ElementCount elements(masters_.size());
    return {.state = HostSpan(std::span(state_)).subspan({}, tile_bytes(kind_.format, elements).value()),
            .gradient = {},
            .parameter = HostSpan(std::span(parameter_)),
            .elements = elements,
            .gradient_dtype = DType::fp32,
            .parameter_dtype = kind_.parameter,
            .format = kind_.format};
  }

  std::vector<float> state_;
  std::vector<std::uint16_t> parameter_;
  std::vector<float> masters_, before_;
  TileKind kind_;
};

}  // namespace

GradientSeries noise_with_drift() {
  return {"noise", [](Random& random, std::size_t, std::uint64_t) { return noise(random); }, counts_all};
}

GradientSeries noise_beside_outliers(float factor, std::string name) {
  const auto is_outlier = [](std::size_t i) { return i % run == 7; };
  return {std::move(name),
          [=](Random& random, std::size_t i, std::uint64_t) {
            return (is_outlier(i) ? factor : 1.0f) * noise(random);
          },
          [=](std::size_t i) { return !is_outlier(i); }};
}

std::vector<GradientSeries> all_series() {
  const auto constant = [](Random&, std::size_t i, std::uint64_t) {
    return drift + static_cast<float>(i % run) / run;
  };
  const auto sparse = [](Random& random, std::size_t i, std::uint64_t step) {
    return (i + step) % 200 == 0 ? noise(random) : 0.0f;
  };
  const auto student_t = [](Random& random, std::size_t, std::uint64_t) {
    return drift + std::student_t_distribution<float>(1.5f)(random);
  };
  return {noise_with_drift(),
          {"constant", constant, counts_all},
          {"every 200th step", sparse, counts_all},
          {"Student t", student_t, counts_all},
          noise_of_all_scales(-3, 0),
          noise_of_all_scales(-5, -3),
          noise_of_all_scales(-6, -5),
          noise_of_all_scales(-8, -6),
          noise_beside_outliers(1e4f, "outlier 1e4"),
          noise_beside_outliers(5e4f, "outlier 5e4"),
          noise_beside_outliers(1e5f, "outlier 1e5"),
          noise_beside_outliers(1e6f, "outlier 1e6")};
}

std::vector<UpdateError> update_errors(const GradientSeries& series, std::span<const TileKind> kinds,
                                       std::size_t elements, std::uint64_t steps) {
  Random random(1);
  Reference reference(elements);
  std::deque<Trainee> trainees;
  for (const TileKind& kind : kinds) trainees.emplace_back(kind, elements);
  std::vector<float> gradient(elements);
  std::vector<double> travel(elements), square_errors(kinds.size());
  double squares = 0;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    for (std::size_t i = 0; i < elements; ++i) gradient[i] = series.gradient(random, i, step);
    reference.step(step, gradient);
    for (Trainee& trainee : trainees) trainee.step(step, gradient);
    for (std::size_t i = 0; i < elements; ++i) {
      if (!series.is_counted(i)) continue;
      const double change = reference.changes()[i];
      travel[i] += change;
      squares += change * change;
      for (std::size_t f = 0; f < kinds.size(); ++f) {
        square_errors[f] += std::pow(trainees[f].change(i) - change, 2);
      }
    }
  }

  std::vector<UpdateError> errors;
  for (std::size_t f = 0; f < kinds.size(); ++f) {
    double along = 0, distance = 0;
    for (std::size_t i = 0; i < elements; ++i) {
      if (!series.is_counted(i)) continue;
      along += travel[i] < 0 ? -trainees[f].travel(i) : trainees[f].travel(i);
      distance += std::abs(travel[i]);
    }
    errors.push_back({.rms = std::sqrt(square_errors[f] / squares), .travel_bias = along / distance - 1});
  }
  return errors;
}

}  // namespace penstock::test
