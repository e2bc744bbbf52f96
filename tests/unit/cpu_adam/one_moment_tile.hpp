#pragma once

#include "adam_reference.hpp"
#include "tile_fixture.hpp"

#include <penstock/cpu_adam/optimizers.hpp>

#include <ostream>
#include <string>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;

/// What a tile of Lion or Adagrad can be.
struct OneMomentKind {
  Optimizer optimizer;
  StateFormat format;
  DType gradient, parameter;

  friend std::ostream& operator<<(std::ostream& out, const OneMomentKind& kind) { return out << kind.name(); }
  /// Of the stored master: in format moments it is the parameter.
  [[nodiscard]] DType master() const { return format == StateFormat::fp32 ? DType::fp32 : parameter; }
  [[nodiscard]] std::string name() const {
    const auto text = [](std::string_view view) { return std::string(view); };
    return text(to_string(optimizer)) + "_" + text(to_string(format)) + "_" + text(to_string(gradient)) +
           "_to_" + text(to_string(parameter));
  }
};

inline std::vector<OneMomentKind> one_moment_kinds() {
  std::vector<OneMomentKind> kinds;
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::adagrad}) {
    for (const DType gradient : {DType::fp32, DType::bf16, DType::fp16}) {
      for (const DType parameter : {DType::fp32, DType::bf16, DType::fp16}) {
        kinds.push_back({optimizer, StateFormat::fp32, gradient, parameter});
        kinds.push_back({optimizer, StateFormat::moments, gradient, parameter});
      }
    }
  }
  return kinds;
}

/// A tile of Lion or Adagrad, read and written by its documented layout, independently of the library. Its spans end at
/// inaccessible pages, or `slack` elements before.
class OneMomentTile {
 public:
  OneMomentTile(const OneMomentKind& kind, std::size_t count, std::size_t slack = 0)
      : kind_(kind),
        count_(count),
        state_(ByteCount(bytes_each() * count + 4 * slack)),
        gradient_(size_of(kind.gradient) * (count + slack)),
        parameter_(size_of(kind.parameter) * (count + slack)) {}

  [[nodiscard]] OptimizerTile tile() const { return cut(0, count_); }
  /// Elements [first, first + count), `first` at a block's start.
  [[nodiscard]] OptimizerTile cut(std::size_t first, std::size_t count) const {
    const auto part = [&](const GuardedBytes& memory, ByteCount size) {
      return memory.span().subspan(size * first, size * count);
    };
    return {.state = part(state_, ByteCount(bytes_each())),
            .gradient = part(gradient_, size_of(kind_.gradient)),
            .parameter = part(parameter_, size_of(kind_.parameter)),
            .elements = ElementCount(count),
            .gradient_dtype = kind_.gradient,
            .parameter_dtype = kind_.parameter,
            .format = kind_.format,
            .first_element = first,
            .optimizer = kind_.optimizer};
  }

  /// Masters, gradients, and the moment that the optimizer keeps.
  void set(const TileValues& values) {
    for (std::size_t i = 0; i < count_; ++i) {
      put(kind_.master(), master_at(i), rounded_to(kind_.master(), values.master[i]));
      put(DType::fp32, moment_at(i), kind_.optimizer == Optimizer::lion ? values.m[i] : values.v[i]);
      put(kind_.gradient, gradient_at(i), rounded_to(kind_.gradient, values.gradient[i]));
    }
  }

  [[nodiscard]] float master(std::size_t i) const { return get(kind_.master(), master_at(i)); }
  [[nodiscard]] float moment(std::size_t i) const { return get(DType::fp32, moment_at(i)); }
  [[nodiscard]] float gradient(std::size_t i) const { return get(kind_.gradient, gradient_at(i)); }
  [[nodiscard]] float parameter(std::size_t i) const { return get(kind_.parameter, parameter_at(i)); }

  /// State, then parameter, as raw bytes.
  [[nodiscard]] std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const HostSpan span : {tile().state, tile().parameter}) {
      all.insert(all.end(), span.data(), span.data() + span.size().value());
    }
    return all;
  }
  /// The same with NaNs of any payload equal: the compiler may choose which operand's payload survives.
  [[nodiscard]] std::vector<std::byte> bytes_without_payloads() const {
    std::vector<std::byte> all = bytes();
    const auto blank = [&](std::size_t at, DType dtype) {
      if (std::isnan(get(dtype, &all[at]))) std::fill_n(&all[at], size_of(dtype).value(), std::byte{0xff});
    };
    const std::size_t state = bytes_each() * count_, each = size_of(kind_.parameter).value();
    for (std::size_t at = 0; at < state; at += 4) blank(at, DType::fp32);
    for (std::size_t at = state; at < all.size(); at += each) blank(at, kind_.parameter);
    return all;
  }

 private:
  [[nodiscard]] bool has_master() const { return kind_.format == StateFormat::fp32; }
  [[nodiscard]] std::size_t bytes_each() const { return has_master() ? 8 : 4; }
  [[nodiscard]] std::byte* state_at(std::size_t i, std::size_t state) const {
    const std::size_t first = i / 16384 * 16384, length = std::min<std::size_t>(16384, count_ - first);
    return state_.span().data() + bytes_each() * first + 4 * (state * length + (i - first));
  }
  [[nodiscard]] std::byte* master_at(std::size_t i) const {
    return has_master() ? state_at(i, 0) : parameter_at(i);
  }
  [[nodiscard]] std::byte* moment_at(std::size_t i) const { return state_at(i, has_master() ? 1 : 0); }
  [[nodiscard]] std::byte* gradient_at(std::size_t i) const {
    return gradient_.span().data() + i * size_of(kind_.gradient).value();
  }
  [[nodiscard]] std::byte* parameter_at(std::size_t i) const {
    return parameter_.span().data() + i * size_of(kind_.parameter).value();
  }

  OneMomentKind kind_;
  std::size_t count_;
  GuardedBytes state_, gradient_, parameter_;
};

/// Hyperparameters that differ from the defaults.
inline Hyperparameters one_moment_config(Optimizer optimizer, float learning_rate = 1e-2f,
                                         float weight_decay = 0.1f) {
  if (optimizer == Optimizer::lion) {
    return LionConfig{
        .learning_rate = learning_rate, .beta1 = 0.85f, .beta2 = 0.98f, .weight_decay = weight_decay};
  }
  return AdagradConfig{.learning_rate = learning_rate, .epsilon = 1e-6f, .weight_decay = weight_decay};
}

/// One element in double and in the papers' form; independent of the kernels.
struct OneMomentReference {
  double p = 0, moment = 0;
  /// The largest magnitude of any term of p and of the moment: what ULPs are counted of.
  double p_scale = 0, moment_scale = 0;
  /// Lion's direction is so close to zero that its sign depends on roundings.
  bool sign_is_rounding = false;

  void step(const LionConfig& config, double g) {
    const double beta1 = config.beta1, beta2 = config.beta2, lr = config.learning_rate;
    const double c = beta1 * moment + (1 - beta1) * g;
    const double terms = std::max(std::abs(beta1 * moment), std::abs((1 - beta1) * g));
    sign_is_rounding = c != 0 && std::abs(c) <= std::max(4 * terms * 0x1p-23, 0x1p-148);
    const double sign = c > 0 ? 1 : c < 0 ? -1 : 0;
    const double update = lr * (sign + config.weight_decay * p);
    p_scale = std::max({std::abs(p), std::abs(p - update), std::abs(update)});
    moment_scale = std::max(std::abs(beta2 * moment), std::abs((1 - beta2) * g));
    p -= update;
    moment = beta2 * moment + (1 - beta2) * g;
  }
  void step(const AdagradConfig& config, double gradient) {
    const double g = gradient + double{config.weight_decay} * p;
    const double largest = std::max(std::abs(gradient), std::abs(double{config.weight_decay} * p));
    moment_scale = std::max(moment + g * g, largest * largest);
    moment += g * g;
    const double update = config.learning_rate * g / (std::sqrt(moment) + config.epsilon);
    p_scale = std::max({std::abs(p), std::abs(p - update), std::abs(update)});
    p -= update;
  }
  void step(const AdamConfig&, double) {}
};

}  // namespace penstock::test
