#pragma once

#include <penstock/base/span.hpp>
#include <penstock/tiers/device/device.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace penstock::zero {

class Engine;
class EngineState;

/// The right to read the gathered parameters of a unit on the device. While it exists, they are neither dropped nor
/// moved. If MemoryPlan::shares_memory, they are the parameter shards themselves: do not write to them. end() or the
/// destructor ends it, in the order of the stream that it was acquired with. Once the engine is destroyed, parameters()
/// must not be used, and end() does nothing. Move-only.
class UnitLease {
 public:
  UnitLease() = default;
  UnitLease(UnitLease&& other) noexcept { swap(other); }
  UnitLease& operator=(UnitLease&& other) noexcept {
    end();
    swap(other);
    return *this;
  }
  ~UnitLease() { end(); }

  /// In the order of UnitLayout: its own parameters, then those it shares.
  [[nodiscard]] std::span<const DeviceTensor> parameters() const { return parameters_; }
  void end() noexcept;

 private:
  friend class Engine;
  void swap(UnitLease& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(unit_, other.unit_);
    std::swap(stream_, other.stream_);
    std::swap(parameters_, other.parameters_);
  }
  std::weak_ptr<EngineState> engine_;
  std::uint32_t unit_ = 0;
  tiers::Stream* stream_ = nullptr;
  std::vector<DeviceTensor> parameters_;
};

enum class CheckpointUse : std::uint8_t {
  write,
  read,       ///< do not write: what is written may be lost
  last_read,  ///< the same; the contents are not needed after the lease
};

/// The right to use an activation checkpoint's memory on the device. end() or the destructor ends it, in the order of
/// the stream that it was leased with. Once the engine is destroyed, bytes() must not be used, and end() does nothing.
/// Move-only.
class CheckpointLease {
 public:
  CheckpointLease() = default;
  CheckpointLease(CheckpointLease&& other) noexcept { swap(other); }
  CheckpointLease& operator=(CheckpointLease&& other) noexcept {
    end();
    swap(other);
    return *this;
  }
  ~CheckpointLease() { end(); }

  /// CheckpointLayout::size bytes, aligned to 4096; empty once it has ended.
  [[nodiscard]] DeviceSpan bytes() const { return bytes_; }
  void end() noexcept;

 private:
  friend class Engine;
  void swap(CheckpointLease& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(checkpoint_, other.checkpoint_);
    std::swap(bytes_, other.bytes_);
  }
  std::weak_ptr<EngineState> engine_;
  std::uint32_t checkpoint_ = 0;
  DeviceSpan bytes_;
};

/// The destination of one parameter's gradient.
struct GradientSlot {
  DeviceTensor tensor;      ///< of the configuration's dtype; empty if the parameter is frozen
  bool accumulate = false;  ///< true: add to the tensor; false: overwrite it, its contents are undefined
};

/// One parameter's gradient in memory of the caller, of any dtype; empty if the parameter is frozen.
using GradientSource = std::variant<DeviceTensor, HostTensor>;

/// The full gradient of a unit, to be written by its backward and then passed to reduce(). Move-only.
class UnitGradients {
 public:
  UnitGradients() = default;
  UnitGradients(UnitGradients&& other) noexcept { swap(other); }
  UnitGradients& operator=(UnitGradients&& other) noexcept {
    swap(other);
    return *this;
  }

  /// In the order of UnitLayout: those of its own parameters, then of those it shares.
  [[nodiscard]] std::span<const GradientSlot> slots() const { return slots_; }

 private:
  friend class Engine;
  void swap(UnitGradients& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(unit_, other.unit_);
    std::swap(slots_, other.slots_);
  }
  std::weak_ptr<EngineState> engine_;
  std::uint32_t unit_ = 0;
  std::vector<GradientSlot> slots_;
};

}  // namespace penstock::zero
