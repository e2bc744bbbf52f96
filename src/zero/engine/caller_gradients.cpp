#include "zero/engine/caller_gradients.hpp"

#include <algorithm>
#include <string>

namespace penstock::zero {

namespace {

/// Address, size and dtype of a tensor on either side.
struct Operand {
  std::uintptr_t address;
  ByteCount size;
  DType dtype;
};

Operand operand_of(const GradientSource& gradient) {
  if (const auto* host = std::get_if<HostTensor>(&gradient)) {
    return {reinterpret_cast<std::uintptr_t>(host->bytes.data()), host->bytes.size(), host->dtype};
  }
  const auto& device = std::get<DeviceTensor>(gradient);
  return {static_cast<std::uintptr_t>(device.bytes.address()), device.bytes.size(), device.dtype};
}

Error refused(std::string object) {
  return Error::invalid_argument("Engine::reduce").object(std::move(object));
}

bool overlap(const Operand& x, std::uintptr_t address, ByteCount size) {
  return x.address < address + size.value() && address < x.address + x.size.value();
}

}  // namespace

CallerGradients::~CallerGradients() {
  if (!staging_.empty() && !context_.device_hangs()) context_.device.release(staging_);
}

Result<void> CallerGradients::prepare(std::uint32_t unit, std::span<const GradientSource> gradients) {
  const auto parameters = context_.model.parameters_of(unit);
  if (gradients.size() != parameters.size()) {
    return refused("gradients of " + context_.model.units[unit].name)
        .wanted(std::to_string(parameters.size()) + ", one for each parameter, shared ones included")
        .got(gradients.size());
  }
  ByteCount needed;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (context_.is_frozen(parameters[i])) {
      PENSTOCK_TRY(check_empty(context_.model.parameter(parameters[i]), gradients[i]));
      continue;
    }
    PENSTOCK_TRY(check(context_.model.parameter(parameters[i]), gradients[i]));
    needed = std::max(needed, staging_needed(parameters[i], gradients[i]));
  }
  if (needed <= staging_.size()) return ok();
  if (staged_ != nullptr) PENSTOCK_TRY(context_.wait_for(*staged_, "copies of the caller's gradients"));
  (void)release();
  auto allocated = context_.device.allocate(needed);
  if (!allocated) {
    return Error(allocated.error().code(), "Engine::reduce")
        .reason("the device has no room for a gradient in host memory that is converted or added to another")
        .wanted(to_string(needed) + " beside the engine's budget")
        .got(to_string(context_.device.free_memory()))
        .advice("create the device with more memory, or pass gradients in device memory");
  }
  staging_ = *allocated;
  return ok();
}

ByteCount CallerGradients::release() {
  staged_.reset();
  if (!staging_.empty()) context_.device.release(staging_);
  return std::exchange(staging_, DeviceSpan()).size();
}

Result<void> CallerGradients::check(const ParameterLayout& parameter, const GradientSource& gradient) const {
  const Operand operand = operand_of(gradient);
  if (operand.dtype != DType::fp32 && operand.dtype != DType::bf16 && operand.dtype != DType::fp16) {
    return refused("dtype of the gradient of " + parameter.name)
        .wanted("fp32, bf16 or fp16")
        .got(static_cast<unsigned>(operand.dtype));
  }
  const ByteCount element = size_of(operand.dtype), size = element * parameter.count.value();
  if (operand.size != size) {
    return refused("gradient of " + parameter.name)
        .wanted(to_string(parameter.count) + " in " + std::string(to_string(operand.dtype)) + ", " +
                to_exact_string(size))
        .got(to_exact_string(operand.size));
  }
  if (operand.address == 0 || operand.address % element.value() != 0) {
    return refused("address of the gradient of " + parameter.name)
        .wanted("a multiple of " + to_string(element) + ", not null")
        .got(operand.address);
  }
  return check_apart(parameter.name, gradient);
}

Result<void> CallerGradients::check_empty(const ParameterLayout& frozen,
                                          const GradientSource& gradient) const {
  const ByteCount size = operand_of(gradient).size;
  if (size.is_zero()) return ok();
  return refused("gradient of " + frozen.name)
      .reason("the parameter is frozen, so that it has no gradient")
      .wanted("an empty tensor")
      .got(to_exact_string(size))
      .advice("pass GradientSource() for it, or clear OptimizerGroup::frozen");
}

/// Host memory that the device cannot access directly is copied into the slot, unless the gradient is converted, or
/// added to that of another unit.
ByteCount CallerGradients::staging_needed(ParameterId id, const GradientSource& gradient) const {
  const auto* host = std::get_if<HostTensor>(&gradient);
  if (host == nullptr || context_.device.memory() == tiers::DeviceMemory::host) return {};
  const bool shared = context_.shards.user_count(context_.shards.place(id).flat) > 1;
  return shared || host->dtype != context_.config.dtype ? host->bytes.size() : ByteCount();
}

/// A device may have the addresses of host memory for its own memory, so each kind is compared with its own.
Result<void> CallerGradients::check_apart(const std::string& name, const GradientSource& gradient) const {
  const Operand operand = operand_of(gradient);
  const HostSpan host = context_.runtime.host_memory();
  const bool shared = context_.device.memory() == tiers::DeviceMemory::host;
  const bool on_host = std::holds_alternative<HostTensor>(gradient);
  const bool in_host =
      (on_host || shared) && overlap(operand, reinterpret_cast<std::uintptr_t>(host.data()), host.size());
  const auto regions = context_.regions();
  const bool on_device =
      (!on_host || shared) && std::any_of(regions.begin(), regions.end(), [&](const DeviceRegion* region) {
        return overlap(operand, static_cast<std::uintptr_t>(region->memory().address()),
                       region->memory().size());
      });
  if (!in_host && !on_device) return ok();
  return refused("gradient of " + name)
      .wanted("memory of the caller")
      .got("memory of the engine")
      .advice("write gradients into the slots of gradients(), and pass that object to reduce()");
}

Result<void> CallerGradients::copy(std::span<const GradientSource> gradients,
                                   std::span<const GradientSlot> slots, tiers::Stream& stream) {
  // The last gradients may have been copied on another stream.
  if (staged_ != nullptr) {
    if (auto waits = stream.wait(*staged_); !waits) return context_.fail(waits.error());
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].tensor.bytes.empty()) continue;  // frozen
    if (auto copied = copy_one(gradients[i], slots[i], stream); !copied) return context_.fail(copied.error());
  }
  if (staging_.empty()) return ok();
  auto fence = context_.events.record(stream);
  if (!fence) return context_.fail(fence.error());
  staged_ = *std::move(fence);
  return ok();
}

Result<void> CallerGradients::copy_one(const GradientSource& gradient, const GradientSlot& slot,
                                       tiers::Stream& stream) {
  DeviceTensor from;
  if (const auto* host = std::get_if<HostTensor>(&gradient)) {
    const bool direct = !slot.accumulate && host->dtype == slot.tensor.dtype;
    if (direct) return context_.device.copy_to_device(stream.handle(), host->bytes, slot.tensor.bytes);
    PENSTOCK_TRY_ASSIGN(from, on_device(*host, stream));
  } else {
    from = std::get<DeviceTensor>(gradient);
  }
  return slot.accumulate ? compute_.accumulate(stream.handle(), from, slot.tensor)
                         : compute_.cast(stream.handle(), from, slot.tensor);
}

/// The order of the stream is that of the uses of the staging memory: the next copy into it runs after the last one out
/// of it.
Result<DeviceTensor> CallerGradients::on_device(const HostTensor& gradient, tiers::Stream& stream) {
  const ByteCount size = gradient.bytes.size();
  if (context_.device.memory() == tiers::DeviceMemory::host) {
    const DeviceAddress address{reinterpret_cast<std::uintptr_t>(gradient.bytes.data())};
    return DeviceTensor{DeviceSpan(address, size), gradient.dtype};
  }
  const DeviceTensor staged{staging_.subspan({}, size), gradient.dtype};
  PENSTOCK_TRY(context_.device.copy_to_device(stream.handle(), gradient.bytes, staged.bytes));
  return staged;
}

}  // namespace penstock::zero
