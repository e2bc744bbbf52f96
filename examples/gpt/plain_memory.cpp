#include "gpt/plain_memory.hpp"

#include "gpt/initial_values.hpp"

#include <penstock/base/compute.hpp>

#include <algorithm>

namespace gpt {

using namespace penstock;  // NOLINT: an example reads better so

namespace {

constexpr std::uint64_t parameter_alignment = 128;  // elements
constexpr ElementCount piece_elements = cpu_adam::block_elements * 64;

/// With fp32 parameters, the parameter is the master, and the state holds the moments alone.
cpu_adam::StateFormat format_of(const zero::Config& config) {
  using cpu_adam::StateFormat;
  const StateFormat configured = config.penstock.state_format;
  return configured == StateFormat::fp32 && config.dtype == DType::fp32 ? StateFormat::moments : configured;
}

DeviceSpan all(DeviceSpan first, DeviceSpan last) {
  const auto begin = static_cast<std::uintptr_t>(first.address());
  return {first.address(), ByteCount(static_cast<std::uintptr_t>(last.address()) - begin) + last.size()};
}

}  // namespace

struct PlainMemory::Piece {
  const Flat& flat;
  ElementCount begin, count;
  DeviceSpan state_on_device, parameters_on_device;
  cpu_adam::AdamTile tile;  // in host memory

  /// Calls visit(id, first element of the parameter, first element of the piece, count) for each parameter in it.
  template <class Visit>
  void for_each_parameter(const ModelDescription& model, const Visit& visit) const {
    for (const Flat::Slot& slot : flat.slots) {
      const ElementCount first = std::max(slot.begin, begin);
      const ElementCount last = std::min(slot.begin + model.parameter(slot.id).count, begin + count);
      if (first < last) {
        visit(slot.id, (first - slot.begin).value(), (first - begin).value(), (last - first).value());
      }
    }
  }
};

PlainMemory::PlainMemory(const ModelDescription& model, const zero::Config& config,
                         std::uint32_t micro_batches)
    : model_(model),
      dtype_(config.dtype),
      gradient_dtype_(config.grad_accum_dtype),
      format_(format_of(config)),
      has_incoming_(micro_batches > 1 || gradient_dtype_ != dtype_),
      places_(model.units().size()) {
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) add_unit(unit);
  size_ = lay_out(DeviceAddress());
}

void PlainMemory::add_unit(std::size_t unit) {
  const auto& parameters = model_.units()[unit].parameters;
  places_[unit].resize(parameters.size());
  for (const bool decays : {true, false}) {
    Flat flat{.decays = decays};
    ElementCount end;
    for (std::size_t index = 0; index < parameters.size(); ++index) {
      if (parameters[index].weight_decay != decays) continue;
      flat.slots.push_back({{unit, index}, end});
      places_[unit][index] = {flats_.size(), end};
      end += ElementCount(round_up(parameters[index].count.value(), parameter_alignment));
    }
    if (flat.slots.empty()) continue;
    flat.parameters = {{{}, size_of(dtype_) * end.value()}, dtype_};
    flat.first_element = std::uint64_t{flats_.size()} << 40;
    flats_.push_back(std::move(flat));
  }
}

ByteCount PlainMemory::lay_out(DeviceAddress begin) {
  const Alignment alignment(256);
  ByteCount size;
  const auto take = [&](ByteCount wanted) {
    const auto address = DeviceAddress(static_cast<std::uintptr_t>(begin) + size.value());
    size += round_up(wanted, alignment);
    return DeviceSpan(address, wanted);
  };
  const auto take_elements = [&](DType dtype, ElementCount count) {
    return DeviceTensor{take(size_of(dtype) * count.value()), dtype};
  };
  for (Flat& flat : flats_) flat.parameters = take_elements(dtype_, flat.count());
  for (Flat& flat : flats_) flat.gradients = take_elements(gradient_dtype_, flat.count());
  if (has_incoming_) {
    for (Flat& flat : flats_) flat.incoming = take_elements(dtype_, flat.count());
  }
  gradients_ = all(flats_.front().gradients.bytes,
                   has_incoming_ ? flats_.back().incoming.bytes : flats_.back().gradients.bytes);
  for (Flat& flat : flats_) flat.state = take(*cpu_adam::tile_bytes(format_, flat.count()));
  // One after the other, so that one copy brings those of all flats.
  const ByteCount each(sizeof(std::uint64_t));
  first_non_finite_blocks_ = take(each * flats_.size());
  for (std::size_t i = 0; i < flats_.size(); ++i) {
    flats_[i].first_non_finite_block = first_non_finite_blocks_.subspan(each * i, each);
  }
  ByteCount squares;
  const auto squares_size = [](const Flat& flat) {
    return ByteCount(sizeof(double)) * ceil_divide(flat.count().value(), Compute::square_sum_block);
  };
  for (const Flat& flat : flats_) squares += squares_size(flat);
  squares_ = take(squares);
  ByteCount at;
  for (Flat& flat : flats_) {
    flat.squares = squares_.subspan(at, squares_size(flat));
    at += flat.squares.size();
  }
  return size;
}

Result<void> PlainMemory::allocate(DeviceAllocator& allocator) {
  PENSTOCK_TRY_ASSIGN(buffer_, allocator.allocate(size_));
  lay_out(buffer_.bytes.address());
  return ok();
}

template <class Visit>
Result<void> PlainMemory::for_each_piece(const Visit& visit) const {
  std::vector<std::byte> state, parameters;
  for (const Flat& flat : flats_) {
    for (ElementCount begin; begin < flat.count(); begin += piece_elements) {
      const ElementCount count = std::min(piece_elements, flat.count() - begin);
      PENSTOCK_TRY_ASSIGN(const ByteCount before, cpu_adam::tile_bytes(format_, begin));
      PENSTOCK_TRY_ASSIGN(const ByteCount bytes, cpu_adam::tile_bytes(format_, count));
      const DeviceSpan parameters_on_device = flat.parameters.slice(begin, count).bytes;
      state.resize(bytes.value());
      parameters.resize(parameters_on_device.size().value());
      PENSTOCK_TRY(visit(Piece{.flat = flat,
                               .begin = begin,
                               .count = count,
                               .state_on_device = flat.state.subspan(before, bytes),
                               .parameters_on_device = parameters_on_device,
                               .tile = {.state = HostSpan(std::span(state)),
                                        .parameter = HostSpan(std::span(parameters)),
                                        .elements = count,
                                        .gradient_dtype = gradient_dtype_,
                                        .parameter_dtype = dtype_,
                                        .format = format_,
                                        .first_element = flat.first_element + begin.value()}}));
    }
  }
  return ok();
}

Result<void> PlainMemory::initialize(tiers::Device& device, tiers::Stream& stream,
                                     parallel::Workers& workers) {
  const StreamHandle handle = stream.handle();
  PENSTOCK_TRY(device.fill_zero(handle, gradients_));
  std::vector<float> values;
  return for_each_piece([&](const Piece& piece) -> Result<void> {
    values.assign(piece.count.value(), 0.0f);
    piece.for_each_parameter(
        model_, [&](ParameterId id, std::uint64_t first, std::uint64_t at, std::uint64_t count) {
          initial_values(model_, id, first, std::span(values).subspan(at, count), workers);
        });
    PENSTOCK_TRY(cpu_adam::initialize_tile(ConstHostSpan(std::span(std::as_const(values))), DType::fp32,
                                           piece.tile, &workers));
    PENSTOCK_TRY(device.copy_to_device(handle, piece.tile.state, piece.state_on_device));
    PENSTOCK_TRY(device.copy_to_device(handle, piece.tile.parameter, piece.parameters_on_device));
    return stream.synchronize();
  });
}

Result<void> PlainMemory::read_masters(tiers::Device& device, tiers::Stream& stream,
                                       const MasterSink& sink) const {
  const StreamHandle handle = stream.handle();
  std::vector<float> values;
  return for_each_piece([&](const Piece& piece) -> Result<void> {
    PENSTOCK_TRY(device.copy_to_host(handle, piece.state_on_device, piece.tile.state));
    PENSTOCK_TRY(device.copy_to_host(handle, piece.parameters_on_device, piece.tile.parameter));
    PENSTOCK_TRY(stream.synchronize());
    values.resize(piece.count.value());
    PENSTOCK_TRY(cpu_adam::read_states(piece.tile, cpu_adam::StateKind::master, {}, values));
    piece.for_each_parameter(model_,
                             [&](ParameterId id, std::uint64_t first, std::uint64_t at, std::uint64_t count) {
                               sink(id, first, std::span(std::as_const(values)).subspan(at, count));
                             });
    return ok();
  });
}

DeviceTensor PlainMemory::part_of(DeviceTensor flat, ParameterId id) const {
  return flat.slice(places_[id.unit][id.index].begin, model_.parameter(id).count);
}

DeviceTensor PlainMemory::parameter(ParameterId id) const {
  return part_of(flats_[places_[id.unit][id.index].flat].parameters, id);
}

DeviceTensor PlainMemory::gradient(ParameterId id, bool first) const {
  const Flat& flat = flats_[places_[id.unit][id.index].flat];
  return part_of(is_incoming(first) ? flat.incoming : flat.gradients, id);
}

cpu_adam::DeviceAdamTile PlainMemory::tile(const Flat& flat) const {
  return {.state = flat.state,
          .gradient = flat.gradients,
          .parameter = flat.parameters,
          .first_non_finite_block = flat.first_non_finite_block,
          .format = format_,
          .first_element = flat.first_element};
}

}  // namespace gpt
