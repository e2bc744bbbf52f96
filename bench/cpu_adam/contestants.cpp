#include "contestants.hpp"
#include "cpu_adam/adam_coefficients.hpp"

#include "loops.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <penstock/base/check.hpp>
#include <penstock/base/compute.hpp>
#include <thread>
#include "kernels/host_gradient.hpp"

namespace penstock::bench {

namespace {

const cpu_adam::AdamConfig adam{.weight_decay = 0.01f};
constexpr double max_norm = 1.0, loss_scale = 1.0;

/// Bytes of memory traffic per element: the gradient is read, the state read and written, the 16-bit parameter
/// written, and where it is a part of the master, read too.
double stream_bytes(cpu_adam::TileLayout layout) {
  const double state =
      static_cast<double>(cpu_adam::block_bytes(layout, cpu_adam::block_elements).value().value()) /
      static_cast<double>(cpu_adam::block_elements.value());
  return 2 + 2 * state + 2 + (cpu_adam::shares_parameter(layout.format) ? 2 : 0);
}

/// Calls body(first element, count) for every block, on the workers.
template <class Body>
void for_blocks(parallel::Workers& workers, ElementCount elements, const Body& body) {
  const std::uint64_t block = cpu_adam::block_elements.value(), count = elements.value();
  workers.parallel_blocks(ceil_divide(count, block), [&](std::size_t first, std::size_t last) noexcept {
    for (std::size_t b = first; b < last; ++b) body(b * block, std::min(block, count - b * block));
  });
}

HostSpan part(HostSpan span, DType dtype, std::uint64_t first, std::uint64_t count) {
  return span.subspan(size_of(dtype) * first, size_of(dtype) * count);
}

/// The factor that unscales and clips the gradients: clip / loss scale. The engine skips a step whose norm is not
/// finite; here the norm is always finite.
float factor_of(HostSpan gradient, ElementCount elements, std::vector<double>& partials,
                parallel::Workers& workers) {
  constexpr std::uint64_t cut = Compute::square_sum_block;
  for_blocks(workers, elements, [&](std::uint64_t first, std::uint64_t count) {
    const std::span<double> sums(&partials[first / cut], ceil_divide(count, cut));
    kernels::square_sums(part(gradient, DType::bf16, first, count), DType::bf16, sums).value();
  });
  const double norm = std::sqrt(std::accumulate(partials.begin(), partials.end(), 0.0)) / loss_scale;
  PENSTOCK_CHECK(std::isfinite(norm));
  return static_cast<float>(max_norm / std::max(norm, max_norm) / loss_scale);
}

void cast(HostSpan from, DType from_dtype, HostSpan to, DType to_dtype) {
  kernels::accumulate_gradient({from, from_dtype, to, to_dtype}, kernels::GradientWrite::overwrite).value();
}

}  // namespace

/// The inputs of all formats: bf16 noise of magnitude 2^-7 to 2^-6 as gradient, initial parameters of magnitude
/// 1 to 2.
struct Contest::Streams {
  Streams(std::uint64_t elements, parallel::Workers& workers)
      : gradient(ByteCount(2 * elements)),
        initial(gradient.span().size()),
        partials(ceil_divide(elements, Compute::square_sum_block)) {
    const auto noise = [](std::size_t i) {
      return static_cast<std::uint32_t>((i * 0x9e3779b97f4a7c15u) >> 40);
    };
    const auto gradients = gradient.span().as<std::uint16_t>(), initials = initial.span().as<std::uint16_t>();
    workers.parallel_blocks(gradients.size(), [&](std::size_t first, std::size_t last) noexcept {
      for (std::size_t i = first; i < last; ++i) {
        const std::uint32_t bits = noise(i);
        gradients[i] = static_cast<std::uint16_t>((bits & 0x8000u) | 0x3c00u | (bits & 0x7fu));
        initials[i] = static_cast<std::uint16_t>((bits & 0x8000u) | 0x3f80u | (bits & 0x7fu));
      }
    });
  }
  HugeBuffer gradient, initial;
  std::vector<double> partials;
};

struct Contest::Tensors {
  Tensors(cpu_adam::TileLayout tile_layout, std::uint64_t count, const Streams& streams,
          parallel::Workers& workers)
      : layout(tile_layout),
        elements(count),
        state(cpu_adam::tile_bytes(layout, elements).value()),
        gradient(streams.gradient.span()),
        parameter(ByteCount(2 * count)) {
    cpu_adam::initialize_tile(streams.initial.span(), DType::bf16, tile(), &workers).value();
  }
  [[nodiscard]] cpu_adam::OptimizerTile tile() const {
    return {.state = state.span(),
            .gradient = gradient,
            .parameter = parameter.span(),
            .elements = elements,
            .format = layout.format,
            .optimizer = layout.optimizer};
  }

  cpu_adam::TileLayout layout;
  ElementCount elements;
  HugeBuffer state;
  HostSpan gradient;
  HugeBuffer parameter;
};

Contest::Contest(const Options& options) : options_(options) {
  parallel::Workers workers =
      parallel::Workers::create({.threads = std::max(1u, std::thread::hardware_concurrency())}).value();
  streams_ = std::make_unique<Streams>(options.elements, workers);
  const auto tensors_of = [&](cpu_adam::TileLayout layout) -> const Tensors& {
    tensors_.push_back(std::make_unique<Tensors>(layout, options.elements, *streams_, workers));
    return *tensors_.back();
  };
  const Tensors& fp32 = tensors_of(cpu_adam::StateFormat::fp32);
  add_floor(fp32);
  add_plain_loop(fp32);
  add_adam(fp32, false);
  add_adam(fp32, true);
  for (const cpu_adam::StateFormat format : options.formats) {
    if (format != cpu_adam::StateFormat::fp32) add_adam(tensors_of(format), false);
  }
  if (options.tail) {
    add_passes(fp32);
    for (const auto& tensors : tensors_) add_tail(*tensors);
  }
  if (!options.optimizers) return;
  const Tensors& lion = tensors_of({cpu_adam::StateFormat::fp32, cpu_adam::Optimizer::lion});
  add_one_moment_floor(lion);
  add_optimizer(lion, cpu_adam::LionConfig{.weight_decay = 0.01f});
  add_optimizer(tensors_of({cpu_adam::StateFormat::fp32, cpu_adam::Optimizer::adagrad}),
                cpu_adam::AdagradConfig{.weight_decay = 0.01f});
}

Contest::~Contest() = default;

void Contest::add_floor(const Tensors& tensors) {
  contestants_.push_back(
      {"floor", "fp32", stream_bytes(cpu_adam::StateFormat::fp32), [&tensors](parallel::Workers& workers) {
         const volatile float one = 1.0f;  // volatile: the compiler must not drop the multiplication
         const float factor = one;
         const auto state = tensors.state.span().as<float>();
         const auto gradient = tensors.gradient.as<std::uint16_t>();
         const auto parameter = tensors.parameter.span().as<std::uint16_t>();
         for_blocks(workers, tensors.elements, [&](std::uint64_t first, std::uint64_t count) {
           scale_block(&state[3 * first], &gradient[first], &parameter[first], count, factor, 1);
         });
       }});
}

void Contest::add_plain_loop(const Tensors& tensors) {
  contestants_.push_back(
      {"plain loop", "fp32", stream_bytes(cpu_adam::StateFormat::fp32),
       [this, &tensors](parallel::Workers& workers) {
         const auto coefficients = cpu_adam::adam_coefficients(adam, ++step_, 1.0f).value();
         const auto state = tensors.state.span().as<float>();
         const auto gradient = tensors.gradient.as<std::uint16_t>();
         const auto parameter = tensors.parameter.span().as<std::uint16_t>();
         for_blocks(workers, tensors.elements, [&](std::uint64_t first, std::uint64_t count) {
           update_block(coefficients, &state[3 * first], &gradient[first], &parameter[first], count);
         });
       }});
}

void Contest::add_adam(const Tensors& tensors, bool nontemporal) {
  contestants_.push_back(
      {std::string(to_string(tensors.layout.format)) + (nontemporal ? " nontemporal" : ""), "fp32",
       stream_bytes(tensors.layout.format), [this, &tensors, nontemporal](parallel::Workers& workers) {
         cpu_adam::adam_step(adam, ++step_, 1.0f, tensors.tile(),
                             {.workers = &workers, .isa = options_.isa, .nontemporal_parameter = nontemporal})
             .value();
       }});
}

void Contest::add_one_moment_floor(const Tensors& tensors) {
  contestants_.push_back(
      {"one-moment floor", "one-moment floor", stream_bytes(tensors.layout),
       [&tensors](parallel::Workers& workers) {
         const volatile float one = 1.0f;  // see add_floor()
         const float factor = one;
         const auto state = tensors.state.span().as<float>();
         const auto gradient = tensors.gradient.as<std::uint16_t>();
         const auto parameter = tensors.parameter.span().as<std::uint16_t>();
         for_blocks(workers, tensors.elements, [&](std::uint64_t first, std::uint64_t count) {
           scale_one_moment_block(&state[2 * first], &gradient[first], &parameter[first], count, factor, 1);
         });
       }});
}

void Contest::add_optimizer(const Tensors& tensors, const cpu_adam::Hyperparameters& config) {
  contestants_.push_back({std::string(to_string(tensors.layout.optimizer)), "one-moment floor",
                          stream_bytes(tensors.layout), [this, &tensors, config](parallel::Workers& workers) {
                            cpu_adam::optimizer_step(config, ++step_, 1.0f, tensors.tile(),
                                                     {.workers = &workers, .isa = options_.isa})
                                .value();
                          }});
}

void Contest::add_tail(const Tensors& tensors) {
  contestants_.push_back(
      {"tail " + std::string(to_string(tensors.layout.format)), "passes",
       2 + stream_bytes(tensors.layout.format), [this, &tensors](parallel::Workers& workers) {
         const float factor = factor_of(tensors.gradient, tensors.elements, streams_->partials, workers);
         cpu_adam::adam_step(adam, ++step_, factor, tensors.tile(),
                             {.workers = &workers, .isa = options_.isa, .nontemporal_parameter = true})
             .value();
       }});
}

void Contest::add_passes(const Tensors& tensors) {
  fp32_gradient_ = std::make_unique<HugeBuffer>(ByteCount(4 * options_.elements));
  const double bytes = 2 + (2 + 4) + (4 + 4) + (4 + 2 * 12) + (4 + 2);
  contestants_.push_back(
      {"passes", "passes", bytes, [this, &tensors](parallel::Workers& workers) {
         const HostSpan gradient = fp32_gradient_->span();
         const float factor = factor_of(tensors.gradient, tensors.elements, streams_->partials, workers);
         for_blocks(workers, tensors.elements, [&](std::uint64_t first, std::uint64_t count) {
           cast(part(tensors.gradient, DType::bf16, first, count), DType::bf16,
                part(gradient, DType::fp32, first, count), DType::fp32);
         });
         for_blocks(workers, tensors.elements, [&](std::uint64_t first, std::uint64_t count) {
           scale_gradient(&gradient.as<float>()[first], count, factor);
         });
         const auto coefficients = cpu_adam::adam_coefficients(adam, ++step_, 1.0f).value();
         const auto state = tensors.state.span().as<float>();
         for_blocks(workers, tensors.elements, [&](std::uint64_t first, std::uint64_t count) {
           update_block(coefficients, &state[3 * first], &gradient.as<float>()[first], count);
         });
         for_blocks(workers, tensors.elements, [&](std::uint64_t first, std::uint64_t count) {
           cast(part(tensors.state.span(), DType::fp32, 3 * first, count), DType::fp32,
                part(tensors.parameter.span(), DType::bf16, first, count), DType::bf16);
         });
       }});
}

}  // namespace penstock::bench
