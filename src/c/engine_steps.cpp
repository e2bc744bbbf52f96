#include "c/engine.hpp"

#include <span>
#include <utility>

struct penstock_unit {
  penstock_stream stream;
  penstock::zero::UnitLease lease;
  penstock::c::HandleProcess process = {};
};
struct penstock_gradients {
  penstock_stream stream;
  penstock::zero::UnitGradients gradients;
  bool is_reduced = false;
  penstock::c::HandleProcess process = {};
};
struct penstock_activation {
  penstock_stream stream;
  penstock::zero::CheckpointLease lease;
  penstock::c::HandleProcess process = {};
};

namespace {

using namespace penstock;

static_assert(PENSTOCK_ACTIVATION_LAST_READ == static_cast<int>(zero::CheckpointUse::last_read));
static_assert(PENSTOCK_STATUS_FAILED == static_cast<int>(zero::Engine::Status::failed));

void* address_of(const DeviceSpan& bytes) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(bytes.address()));
}

Result<void> check_index(const char* function, std::size_t index, std::size_t count) {
  if (index < count) return ok();
  return Error::invalid_argument(function)
      .object("index")
      .wanted("less than " + std::to_string(count))
      .got(index);
}

penstock_view view_of(const DeviceTensor& tensor, bool accumulate) {
  return {.data = address_of(tensor.bytes),
          .elements = tensor.count().value(),
          .dtype = static_cast<penstock_dtype>(tensor.dtype),
          .accumulate = accumulate ? 1 : 0};
}

Result<zero::Engine::StepOptions> read(const char* function, const penstock_step_options* given) {
  zero::Engine::StepOptions options;
  if (given == nullptr) return options;
  PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "options", given));
  if (from.micro_batches != 0) options.micro_batches = from.micro_batches;
  if (from.has_learning_rate != 0) options.learning_rate = from.learning_rate;
  if (from.units_without_gradient_count == 0) return options;
  PENSTOCK_TRY(
      c::check_count(function, "options.units_without_gradient_count", from.units_without_gradient_count));
  PENSTOCK_TRY(
      c::check_not_null(function, {{"options.units_without_gradient", from.units_without_gradient}}));
  options.units_without_gradient.assign(from.units_without_gradient,
                                        from.units_without_gradient + from.units_without_gradient_count);
  return options;
}

Result<zero::GradientSource> read(const char* function, const penstock_source* given) {
  PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "sources", given));
  PENSTOCK_TRY_ASSIGN(const auto dtype,
                      c::enumerator<DType>(function, "sources.dtype", from.dtype, PENSTOCK_FP16 + 1));
  PENSTOCK_TRY_ASSIGN(const ByteCount bytes, bytes_of(ElementCount(from.elements), dtype));
  if (from.data == nullptr && !bytes.is_zero())
    return Error::invalid_argument(function).object("sources.data").reason("it is NULL").wanted(bytes);
  if (from.on_device == 0)
    return zero::GradientSource(HostTensor{{static_cast<const std::byte*>(from.data), bytes}, dtype});
  const auto address = static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(from.data));
  return zero::GradientSource(DeviceTensor{{address, bytes}, dtype});
}

}  // namespace

penstock_error* penstock_engine_begin_step(penstock_engine* engine, const penstock_step_options* options) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto read_options, read(function, options));
    return engine->engine().begin_step(read_options);
  });
}

penstock_error* penstock_unit_begin(penstock_engine* engine, std::uint32_t unit, penstock_stream* stream,
                                    penstock_unit** lease) {
  return c::call(__func__, {{"engine", engine}, {"stream", stream}, {"lease", lease}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(auto acquired, engine->engine().acquire(unit, *stream->stream));
    c::give(lease, penstock_unit{*stream, std::move(acquired)});
    return ok();
  });
}

std::size_t penstock_unit_count(const penstock_unit* lease) {
  return lease == nullptr ? 0 : lease->lease.parameters().size();
}

penstock_error* penstock_unit_parameter(const penstock_unit* lease, std::size_t index, penstock_view* view) {
  const char* const function = __func__;
  return c::call(function, {{"lease", lease}, {"view", view}}, [&]() -> Result<void> {
    PENSTOCK_TRY(c::check_written_struct(function, "view", view));
    const auto parameters = lease->lease.parameters();
    PENSTOCK_TRY(check_index(function, index, parameters.size()));
    c::write_struct(view, view_of(parameters[index], /*accumulate=*/false));
    return ok();
  });
}

void penstock_unit_end(penstock_unit* lease) {
  c::end(lease);
}

penstock_error* penstock_gradients_begin(penstock_engine* engine, std::uint32_t unit, penstock_stream* stream,
                                         penstock_gradients** gradients) {
  return c::call(__func__, {{"engine", engine}, {"stream", stream}, {"gradients", gradients}},
                 [&]() -> Result<void> {
                   PENSTOCK_TRY_ASSIGN(auto made, engine->engine().gradients(unit, *stream->stream));
                   c::give(gradients, penstock_gradients{*stream, std::move(made)});
                   return ok();
                 });
}

std::size_t penstock_gradients_count(const penstock_gradients* gradients) {
  return gradients == nullptr ? 0 : gradients->gradients.slots().size();
}

penstock_error* penstock_gradients_slot(const penstock_gradients* gradients, std::size_t index,
                                        penstock_view* view) {
  const char* const function = __func__;
  return c::call(function, {{"gradients", gradients}, {"view", view}}, [&]() -> Result<void> {
    PENSTOCK_TRY(c::check_written_struct(function, "view", view));
    const auto slots = gradients->gradients.slots();
    PENSTOCK_TRY(check_index(function, index, slots.size()));
    c::write_struct(view, view_of(slots[index].tensor, slots[index].accumulate));
    return ok();
  });
}

penstock_error* penstock_gradients_reduce(penstock_gradients* gradients, penstock_stream* stream) {
  const char* const function = __func__;
  return c::call(function, {{"gradients", gradients}, {"stream", stream}}, [&]() -> Result<void> {
    if (std::exchange(gradients->is_reduced, true)) {
      return Error::invalid_argument(function)
          .object("gradients")
          .reason("they were passed to an earlier call")
          .advice("call penstock_gradients_end()");
    }
    return gradients->stream.job->engine().reduce(std::move(gradients->gradients), *stream->stream);
  });
}

void penstock_gradients_end(penstock_gradients* gradients) {
  c::end(gradients);
}

penstock_error* penstock_engine_reduce(penstock_engine* engine, std::uint32_t unit,
                                       const penstock_source* sources, std::size_t count,
                                       penstock_stream* stream) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}, {"sources", sources}, {"stream", stream}},
                 [&]() -> Result<void> {
                   std::vector<zero::GradientSource> gradients;
                   PENSTOCK_TRY(c::for_each_struct(
                       function, "sources", sources, count, [&](const penstock_source* one) -> Result<void> {
                         PENSTOCK_TRY_ASSIGN(const auto gradient, read(function, one));
                         gradients.push_back(gradient);
                         return ok();
                       }));
                   return engine->engine().reduce(unit, gradients, *stream->stream);
                 });
}

penstock_error* penstock_engine_step(penstock_engine* engine, penstock_step_outcome* outcome) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}}, [&]() -> Result<void> {
    if (outcome != nullptr) PENSTOCK_TRY(c::check_written_struct(function, "outcome", outcome));
    PENSTOCK_TRY_ASSIGN(auto step, engine->engine().step());
    engine->skip_reason = std::move(step.skip_reason);
    if (outcome == nullptr) return ok();
    c::write_struct(outcome, {.updated = step.kind == zero::StepOutcome::Kind::updated ? 1 : 0,
                              .gradient_norm = step.gradient_norm,
                              .clip_factor = step.clip_factor,
                              .learning_rate = step.learning_rate,
                              .loss_scale = step.loss_scale,
                              .step = step.step,
                              .gradient_wait_seconds = c::seconds_of(step.gradient_wait),
                              .previous_update_seconds = c::seconds_of(step.previous_update),
                              .updated_by_cpu = step.updated_by_cpu.value(),
                              .updated_on_device = step.updated_on_device.value()});
    return ok();
  });
}

const char* penstock_engine_skip_reason(const penstock_engine* engine) {
  return engine == nullptr ? "" : engine->skip_reason.c_str();
}

penstock_error* penstock_engine_finish_update(penstock_engine* engine) {
  return c::call(__func__, {{"engine", engine}}, [&] { return engine->engine().finish_update(); });
}

penstock_error* penstock_engine_abandon_step(penstock_engine* engine, penstock_stream* stream,
                                             const char* cause) {
  return c::call(__func__, {{"engine", engine}, {"stream", stream}}, [&] {
    return engine->engine().abandon_step(*stream->stream, cause == nullptr ? "" : cause);
  });
}

penstock_error* penstock_activation_begin(penstock_engine* engine, std::uint32_t number,
                                          penstock_activation_use use, penstock_stream* stream,
                                          penstock_activation** activation, void** data,
                                          std::uint64_t* bytes) {
  const char* const function = __func__;
  return c::call(
      function, {{"engine", engine}, {"stream", stream}, {"activation", activation}}, [&]() -> Result<void> {
        PENSTOCK_TRY_ASSIGN(const auto of_use, c::enumerator<zero::CheckpointUse>(
                                                   function, "use", use, PENSTOCK_ACTIVATION_LAST_READ + 1));
        PENSTOCK_TRY_ASSIGN(auto lease, engine->engine().checkpoint(number, of_use, *stream->stream));
        const DeviceSpan span = lease.bytes();
        c::give(activation, penstock_activation{*stream, std::move(lease)});
        if (data != nullptr) *data = address_of(span);
        if (bytes != nullptr) *bytes = span.size().value();
        return ok();
      });
}

void penstock_activation_end(penstock_activation* activation) {
  c::end(activation);
}
