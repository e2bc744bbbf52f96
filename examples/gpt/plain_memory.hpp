#pragma once

#include "gpt/device_memory.hpp"
#include "gpt/model_description.hpp"

#include <penstock/cpu_adam/device_adam.hpp>
#include <penstock/parallel/workers.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/config/config.hpp>

#include <cstdint>
#include <functional>
#include <vector>

namespace gpt {

/// Parameters, gradients and optimizer states of a whole model in the memory of one device, in the formats of the
/// configuration. What the configuration says of offloading has no effect.
///
/// The parameters of a unit and an optimizer group follow one another in a flat, each at a multiple of 128 elements, as
/// in Penstock's engine: sums of squares are then of the same blocks, and so have the same bits.
class PlainMemory {
 public:
  struct Flat {
    struct Slot {
      ParameterId id;
      penstock::ElementCount begin;
    };
    std::vector<Slot> slots;
    bool decays = false;
    penstock::DeviceTensor parameters;
    penstock::DeviceTensor gradients;  ///< those of a step
    penstock::DeviceTensor incoming;   ///< those of a micro-batch; empty if all are written to `gradients`
    penstock::DeviceSpan state;
    penstock::DeviceSpan first_non_finite_block;
    penstock::DeviceSpan squares;  ///< partial sums, of Compute::square_sums()
    std::uint64_t first_element = 0;

    [[nodiscard]] penstock::ElementCount count() const { return parameters.count(); }
  };

  /// `micro_batches` of a step.
  PlainMemory(const ModelDescription& model, const penstock::zero::Config& config,
              std::uint32_t micro_batches);

  [[nodiscard]] penstock::ByteCount size() const { return size_; }
  /// Allocates size() bytes in one piece. Errors: those of the allocator.
  penstock::Result<void> allocate(DeviceAllocator& allocator);

  /// Sets the initial values, and clears moments and gradients. Blocks. Errors: those of the device.
  penstock::Result<void> initialize(penstock::tiers::Device& device, penstock::tiers::Stream& stream,
                                    penstock::parallel::Workers& workers);
  /// Receives masters [first, first + values.size()) of a parameter.
  using MasterSink = std::function<void(ParameterId id, std::uint64_t first, std::span<const float> values)>;
  /// Passes each master once. Blocks. Errors: those of the device.
  penstock::Result<void> read_masters(penstock::tiers::Device& device, penstock::tiers::Stream& stream,
                                      const MasterSink& sink) const;

  [[nodiscard]] std::span<const Flat> flats() const { return flats_; }
  /// Of all flats, in order.
  [[nodiscard]] penstock::DeviceSpan squares() const { return squares_; }
  [[nodiscard]] penstock::DeviceSpan first_non_finite_blocks() const { return first_non_finite_blocks_; }

  [[nodiscard]] penstock::DeviceTensor parameter(ParameterId id) const;
  /// Where the gradient of a micro-batch is written: `first` of its step, or a later one.
  [[nodiscard]] penstock::DeviceTensor gradient(ParameterId id, bool first) const;
  /// Whether the gradients of a micro-batch are written to Flat::incoming.
  [[nodiscard]] bool is_incoming(bool first) const { return !first || gradient_dtype_ != dtype_; }

  [[nodiscard]] penstock::cpu_adam::DeviceAdamTile tile(const Flat& flat) const;

 private:
  struct Place {
    std::size_t flat = 0;
    penstock::ElementCount begin;
  };
  /// A part of a flat, and host memory for it.
  struct Piece;

  void add_unit(std::size_t unit);
  /// Assigns the memory from `begin` on. Returns its size.
  penstock::ByteCount lay_out(penstock::DeviceAddress begin);
  [[nodiscard]] penstock::DeviceTensor part_of(penstock::DeviceTensor flat, ParameterId id) const;
  /// Calls visit(piece) for all pieces of all flats.
  template <class Visit>
  penstock::Result<void> for_each_piece(const Visit& visit) const;

  const ModelDescription model_;
  const penstock::DType dtype_, gradient_dtype_;
  const penstock::cpu_adam::StateFormat format_;
  const bool has_incoming_;
  std::vector<Flat> flats_;
  std::vector<std::vector<Place>> places_;  // by unit and parameter
  penstock::DeviceSpan gradients_;          // of all flats, with those of a micro-batch
  penstock::DeviceSpan squares_, first_non_finite_blocks_;
  penstock::ByteCount size_;
  DeviceBuffer buffer_;
};

}  // namespace gpt
