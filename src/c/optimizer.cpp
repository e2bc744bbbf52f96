#include "c/optimizer.hpp"

#include <penstock/cpu_adam/adam.hpp>
#include <penstock/cpu_adam/square_sum.hpp>
#include <penstock/parallel/workers.hpp>

#include <memory>
#include <span>
#include <variant>

struct penstock_workers {
  penstock::parallel::Workers workers;
  penstock::c::HandleProcess process = {};
};

namespace {

using namespace penstock;

static_assert(PENSTOCK_FP16 == static_cast<int>(DType::fp16));
static_assert(PENSTOCK_ADAGRAD == static_cast<int>(cpu_adam::Optimizer::adagrad));
static_assert(PENSTOCK_STATE_MOMENTS_BF16 == static_cast<int>(cpu_adam::StateFormat::moments_bf16));
static_assert(PENSTOCK_SECOND_MOMENT == static_cast<int>(cpu_adam::StateKind::second_moment));

Result<DType> dtype_of(const char* function, const char* argument, penstock_dtype number) {
  return c::enumerator<DType>(function, argument, number, PENSTOCK_FP16 + 1);
}
Result<cpu_adam::StateFormat> format_of(const char* function, const char* argument,
                                        penstock_state_format number) {
  return c::enumerator<cpu_adam::StateFormat>(function, argument, number, PENSTOCK_STATE_MOMENTS_BF16 + 1);
}
Result<cpu_adam::Optimizer> optimizer_of(const char* function, const char* argument,
                                         penstock_optimizer number) {
  return c::enumerator<cpu_adam::Optimizer>(function, argument, number, PENSTOCK_ADAGRAD + 1);
}

/// Errors: invalid_argument.
Result<ByteCount> span_bytes(const char* function, const char* argument, const void* data,
                             std::uint64_t elements, DType type) {
  PENSTOCK_TRY_ASSIGN(const ByteCount bytes, bytes_of(ElementCount(elements), type));
  if (data != nullptr || bytes.is_zero()) return bytes;
  return Error::invalid_argument(function).object(argument).reason("it is NULL").wanted(bytes);
}

Result<cpu_adam::AdamArrays> read(const char* function, const penstock_adam_arrays* given) {
  PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "arrays", given));
  cpu_adam::AdamArrays arrays;
  PENSTOCK_TRY_ASSIGN(arrays.parameter_dtype,
                      dtype_of(function, "arrays.parameter_dtype", from.parameter_dtype));
  PENSTOCK_TRY_ASSIGN(arrays.gradient_dtype,
                      dtype_of(function, "arrays.gradient_dtype", from.gradient_dtype));
  PENSTOCK_TRY_ASSIGN(arrays.moment_dtype, dtype_of(function, "arrays.moment_dtype", from.moment_dtype));
  const auto bytes = [&](const char* name, const void* data, DType type) {
    return span_bytes(function, name, data, from.elements, type);
  };
  PENSTOCK_TRY_ASSIGN(const auto parameter,
                      bytes("arrays.parameter", from.parameter, arrays.parameter_dtype));
  PENSTOCK_TRY_ASSIGN(const auto gradient, bytes("arrays.gradient", from.gradient, arrays.gradient_dtype));
  PENSTOCK_TRY_ASSIGN(const auto first, bytes("arrays.first_moment", from.first_moment, arrays.moment_dtype));
  PENSTOCK_TRY_ASSIGN(const auto second,
                      bytes("arrays.second_moment", from.second_moment, arrays.moment_dtype));
  arrays.parameter = {static_cast<std::byte*>(from.parameter), parameter};
  arrays.gradient = {static_cast<const std::byte*>(from.gradient), gradient};
  arrays.first_moment = {static_cast<std::byte*>(from.first_moment), first};
  arrays.second_moment = {static_cast<std::byte*>(from.second_moment), second};
  return arrays;
}

void write(const cpu_adam::UpdateOutcome& updated, penstock_update_outcome* outcome) {
  if (outcome == nullptr) return;
  const auto block = updated.first_non_finite_block;
  c::write_struct(outcome,
                  {.non_finite_element =
                       block ? static_cast<std::int64_t>(*block * cpu_adam::block_elements.value()) : -1});
}

/// Null, of NULL. Errors: failed_state, for workers of another process.
Result<parallel::Workers*> threads_of(const char* function, penstock_workers* workers) {
  if (workers == nullptr) return nullptr;
  PENSTOCK_TRY(c::check_process(function, {{"workers", workers}}));
  return &workers->workers;
}

std::span<const float> values_of(const float* values, std::uint64_t elements) {
  return values == nullptr ? std::span<const float>() : std::span(values, elements);
}

}  // namespace

namespace penstock::c {

Result<cpu_adam::OptimizerTile> read_tile(const char* function, const penstock_tile* given) {
  PENSTOCK_TRY_ASSIGN(const auto from, read_struct(function, "tile", given));
  cpu_adam::OptimizerTile tile{.elements = ElementCount(from.elements), .first_element = from.first_element};
  PENSTOCK_TRY_ASSIGN(tile.gradient_dtype, dtype_of(function, "tile.gradient_dtype", from.gradient_dtype));
  PENSTOCK_TRY_ASSIGN(tile.parameter_dtype, dtype_of(function, "tile.parameter_dtype", from.parameter_dtype));
  PENSTOCK_TRY_ASSIGN(tile.format, format_of(function, "tile.format", from.format));
  PENSTOCK_TRY_ASSIGN(tile.optimizer, optimizer_of(function, "tile.optimizer", from.optimizer));
  PENSTOCK_TRY_ASSIGN(const ByteCount state, cpu_adam::tile_bytes(tile.layout(), tile.elements));
  PENSTOCK_TRY_ASSIGN(const ByteCount parameter, span_bytes(function, "tile.parameter", from.parameter,
                                                            from.elements, tile.parameter_dtype));
  if (from.state == nullptr && !state.is_zero())
    return Error::invalid_argument(function).object("tile.state").reason("it is NULL").wanted(state);
  tile.state = {static_cast<std::byte*>(from.state), state};
  tile.parameter = {static_cast<std::byte*>(from.parameter), parameter};
  if (from.gradient != nullptr) {
    PENSTOCK_TRY_ASSIGN(const ByteCount gradient, bytes_of(tile.elements, tile.gradient_dtype));
    tile.gradient = {static_cast<const std::byte*>(from.gradient), gradient};
  }
  return tile;
}

Result<cpu_adam::Hyperparameters> read_hyperparameters(const char* function,
                                                       const penstock_hyperparameters* given,
                                                       cpu_adam::Optimizer optimizer) {
  PENSTOCK_TRY_ASSIGN(const auto from, read_struct(function, "hyperparameters", given));
  if (optimizer == cpu_adam::Optimizer::lion) {
    return cpu_adam::LionConfig{.learning_rate = from.learning_rate,
                                .beta1 = from.beta1,
                                .beta2 = from.beta2,
                                .weight_decay = from.weight_decay};
  }
  if (optimizer == cpu_adam::Optimizer::adagrad) {
    return cpu_adam::AdagradConfig{
        .learning_rate = from.learning_rate, .epsilon = from.epsilon, .weight_decay = from.weight_decay};
  }
  return cpu_adam::AdamConfig{
      .learning_rate = from.learning_rate,
      .beta1 = from.beta1,
      .beta2 = from.beta2,
      .epsilon = from.epsilon,
      .weight_decay = from.weight_decay,
      .decay_mode = from.decoupled_decay != 0 ? cpu_adam::AdamDecay::decoupled : cpu_adam::AdamDecay::l2,
      .bias_correction = from.bias_correction != 0};
}

}  // namespace penstock::c

penstock_error* penstock_workers_create(std::uint32_t threads, penstock_workers** workers) {
  return c::call(__func__, {{"workers", workers}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(auto made, parallel::Workers::create({.threads = threads}));
    c::give(workers, penstock_workers{std::move(made)});
    return ok();
  });
}

void penstock_workers_free(penstock_workers* workers) {
  c::end(workers);
}

penstock_error* penstock_tile_state_bytes(penstock_state_format format, penstock_optimizer optimizer,
                                          std::uint64_t elements, std::uint64_t* bytes) {
  const char* const function = __func__;
  return c::call(function, {{"bytes", bytes}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto of_format, format_of(function, "format", format));
    PENSTOCK_TRY_ASSIGN(const auto of_optimizer, optimizer_of(function, "optimizer", optimizer));
    PENSTOCK_TRY_ASSIGN(const ByteCount size,
                        cpu_adam::tile_bytes({of_format, of_optimizer}, ElementCount(elements)));
    *bytes = size.value();
    return ok();
  });
}

penstock_error* penstock_tile_initialize(const penstock_tile* tile, const void* initial,
                                         penstock_dtype initial_dtype, penstock_workers* workers) {
  const char* const function = __func__;
  return c::call(function, {{"tile", tile}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto to, c::read_tile(function, tile));
    PENSTOCK_TRY_ASSIGN(const DType type, dtype_of(function, "initial_dtype", initial_dtype));
    PENSTOCK_TRY_ASSIGN(const ByteCount bytes,
                        span_bytes(function, "initial", initial, to.elements.value(), type));
    PENSTOCK_TRY_ASSIGN(auto* const threads, threads_of(function, workers));
    return cpu_adam::initialize_tile({static_cast<const std::byte*>(initial), bytes}, type, to, threads);
  });
}

penstock_error* penstock_tile_step(const penstock_tile* tile, const penstock_hyperparameters* hyperparameters,
                                   std::uint64_t step, float gradient_factor, penstock_workers* workers,
                                   penstock_update_outcome* outcome) {
  const char* const function = __func__;
  return c::call(function, {{"tile", tile}, {"hyperparameters", hyperparameters}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto to, c::read_tile(function, tile));
    PENSTOCK_TRY_ASSIGN(const auto config, c::read_hyperparameters(function, hyperparameters, to.optimizer));
    if (outcome != nullptr) PENSTOCK_TRY(c::check_written_struct(function, "outcome", outcome));
    PENSTOCK_TRY_ASSIGN(auto* const threads, threads_of(function, workers));
    PENSTOCK_TRY_ASSIGN(const auto updated,
                        cpu_adam::optimizer_step(config, step, gradient_factor, to, {.workers = threads}));
    write(updated, outcome);
    return ok();
  });
}

penstock_error* penstock_adam_step(const penstock_adam_arrays* arrays,
                                   const penstock_hyperparameters* hyperparameters, std::uint64_t step,
                                   float gradient_factor, penstock_workers* workers,
                                   penstock_update_outcome* outcome) {
  const char* const function = __func__;
  return c::call(function, {{"arrays", arrays}, {"hyperparameters", hyperparameters}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto to, read(function, arrays));
    PENSTOCK_TRY_ASSIGN(const auto config,
                        c::read_hyperparameters(function, hyperparameters, cpu_adam::Optimizer::adam));
    if (outcome != nullptr) PENSTOCK_TRY(c::check_written_struct(function, "outcome", outcome));
    PENSTOCK_TRY_ASSIGN(auto* const threads, threads_of(function, workers));
    PENSTOCK_TRY_ASSIGN(const auto updated,
                        cpu_adam::adam_step_in_arrays(std::get<cpu_adam::AdamConfig>(config), step,
                                                      gradient_factor, to, {.workers = threads}));
    write(updated, outcome);
    return ok();
  });
}

penstock_error* penstock_square_sum(const void* values, penstock_dtype dtype, std::uint64_t elements,
                                    penstock_workers* workers, double* sum) {
  const char* const function = __func__;
  return c::call(function, {{"sum", sum}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const DType type, dtype_of(function, "dtype", dtype));
    PENSTOCK_TRY_ASSIGN(const ByteCount bytes, span_bytes(function, "values", values, elements, type));
    PENSTOCK_TRY_ASSIGN(auto* const threads, threads_of(function, workers));
    PENSTOCK_TRY_ASSIGN(*sum,
                        cpu_adam::square_sum({static_cast<const std::byte*>(values), bytes}, type, threads));
    return ok();
  });
}

penstock_error* penstock_tile_read(const penstock_tile* tile, penstock_state_kind kind, std::uint64_t first,
                                   std::uint64_t count, float* values) {
  const char* const function = __func__;
  return c::call(function, {{"tile", tile}, {"values", values}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto from, c::read_tile(function, tile));
    PENSTOCK_TRY_ASSIGN(const auto of_kind, c::enumerator<cpu_adam::StateKind>(function, "kind", kind,
                                                                               PENSTOCK_SECOND_MOMENT + 1));
    return cpu_adam::read_states(from, of_kind, ElementCount(first), std::span(values, count));
  });
}

penstock_error* penstock_tile_restore(const penstock_tile* tile, const float* master,
                                      const float* first_moment, const float* second_moment,
                                      penstock_workers* workers) {
  const char* const function = __func__;
  return c::call(function, {{"tile", tile}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto to, c::read_tile(function, tile));
    const std::uint64_t elements = to.elements.value();
    PENSTOCK_TRY_ASSIGN(auto* const threads, threads_of(function, workers));
    return cpu_adam::restore_tile({.master = values_of(master, elements),
                                   .first_moment = values_of(first_moment, elements),
                                   .second_moment = values_of(second_moment, elements)},
                                  to, threads);
  });
}
