#include "zero/commit/committed_states.hpp"

#include "kernels/host_kernels.hpp"
#include "tiers/io/bounded_call.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/tiles.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace penstock::zero {

namespace {

constexpr const char* reading = "CommittedStates::read";
constexpr std::size_t windows_max = 6;  // a range of elements is in two tiles and two shards at most

struct Named {
  ParameterId id;
  const ParameterLayout* layout;
};
std::vector<Named> parameters_in_order(const ModelLayout& model) {
  std::vector<Named> all;
  for (std::uint32_t unit = 0; unit < model.units.size(); ++unit) {
    const auto& parameters = model.units[unit].parameters;
    for (std::uint32_t i = 0; i < parameters.size(); ++i) all.push_back({{unit, i}, &parameters[i]});
  }
  return all;
}

std::string text(const ParameterLayout& parameter) {
  return parameter.name + " of " + std::to_string(parameter.count.value()) + " elements";
}

std::string text(const std::vector<std::uint64_t>& shape) {
  std::string text;
  for (const std::uint64_t dimension : shape) text += (text.empty() ? "" : " x ") + std::to_string(dimension);
  return text;
}

/// A shape that one of the two leaves open is none that differs.
std::vector<std::string> shape_notes(const std::vector<Named>& committed, const std::vector<Named>& own) {
  std::vector<std::string> notes;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto &a = committed[i].layout->shape, &b = own[i].layout->shape;
    if (a.empty() || b.empty() || a == b) continue;
    notes.push_back("parameter " + own[i].layout->name + " is " + text(b) + " and was committed as " +
                    text(a) + ": its elements keep their order");
  }
  return notes;
}

/// Of a manifest that verifies, but was not written by a run.
Error lacks_elements(std::string tensor) {
  return Error(ErrorCode::corrupted, reading)
      .object(std::move(tensor))
      .reason("the manifest has fewer bytes of it than its elements take");
}

Error other_model(std::string object) {
  return Error::invalid_argument("CommittedStates::open")
      .object(std::move(object))
      .reason("the directory has the states of another model")
      .advice("resume with the model that was committed, or name another durable directory");
}

}  // namespace

CommittedStates::CommittedStates(tiers::FileSystem& files, Manifest manifest, LoadManifest load,
                                 TimePoint deadline)
    : files_(files),
      load_(std::move(load)),
      deadline_(deadline),
      model_(manifest.model),
      shards_(model_, manifest.ranks),
      dtype_(manifest.dtype),
      format_(manifest.format),
      optimizer_(manifest.optimizer) {
  for (const Named& one : parameters_in_order(model_)) in_order_.push_back(one.id);
}

Result<CommittedStates> CommittedStates::open(tiers::FileSystem& files, Manifest manifest, LoadManifest load,
                                              const ModelLayout& model, cpu_adam::Optimizer optimizer,
                                              TimePoint deadline) {
  const auto committed = parameters_in_order(manifest.model), own = parameters_in_order(model);
  if (committed.size() != own.size()) {
    return other_model("the number of parameters")
        .wanted(std::to_string(committed.size()))
        .got(std::to_string(own.size()));
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    const ParameterLayout &a = *committed[i].layout, &b = *own[i].layout;
    if (a.name != b.name || a.count != b.count)
      return other_model("parameter " + std::to_string(i)).wanted(text(a)).got(text(b));
  }
  if (manifest.optimizer != optimizer) {
    return Error::invalid_argument("CommittedStates::open")
        .object("optimizer.type")
        .reason("the directory has the states of another optimizer")
        .wanted(std::string(to_string(manifest.optimizer)))
        .got(std::string(to_string(optimizer)))
        .advice("resume with the optimizer that was committed, or name another durable directory");
  }
  std::vector<std::string> notes = shape_notes(committed, own);
  CommittedStates states(files, std::move(manifest), std::move(load), deadline);
  states.notes_ = std::move(notes);
  std::uint32_t number = 0;
  for (const UnitLayout& unit : model.units) {
    states.first_of_unit_.push_back(number);
    number += static_cast<std::uint32_t>(unit.parameters.size());
  }
  return states;
}

Result<CommittedStates::RankTensors*> CommittedStates::rank(std::uint32_t number) {
  if (const auto found = ranks_.find(number); found != ranks_.end()) return &found->second;
  PENSTOCK_TRY_ASSIGN(auto manifest, load_(number));
  RankTensors& made = ranks_[number];
  made.manifest = std::move(manifest);
  for (const CommittedTensor& tensor : made.manifest.tensors) {
    FlatTensors& flat = made.flats[{tensor.key.unit, tensor.key.group}];
    (tensor.key.role == tiers::Purpose::optimizer_tile ? flat.tiles : flat.shards).push_back(&tensor);
  }
  for (auto& [key, flat] : made.flats) {
    for (auto* const list : {&flat.tiles, &flat.shards}) {
      std::sort(list->begin(), list->end(), [](const CommittedTensor* a, const CommittedTensor* b) {
        return a->key.first < b->key.first;
      });
    }
  }
  return &made;
}

/// The tensor with `element` of the flat, counted over all ranks.
Result<const CommittedTensor*> CommittedStates::find(const RankTensors& from, const FlatLayout& flat,
                                                     tiers::Purpose contents, std::uint64_t element) const {
  const auto found = from.flats.find({flat.unit, flat.group});
  if (found != from.flats.end()) {
    const auto& list =
        contents == tiers::Purpose::optimizer_tile ? found->second.tiles : found->second.shards;
    auto after = std::upper_bound(
        list.begin(), list.end(), element,
        [](std::uint64_t at, const CommittedTensor* tensor) { return at < tensor->key.first; });
    if (after != list.begin() && element - (*--after)->key.first < (*after)->key.count) return *after;
  }
  return Error(ErrorCode::corrupted, reading)
      .object(flat.name + ", element " + std::to_string(element))
      .reason("the manifest of rank " + std::to_string(from.manifest.rank) + " lacks its " +
              std::string(to_string(contents)));
}

Result<CommittedStates::Window> CommittedStates::load(RankTensors& from, const CommittedTensor& tensor,
                                                      ByteCount begin, PageBuffer memory) {
  const std::string& name = from.manifest.files[tensor.file];
  auto file = from.files.find(tensor.file);
  if (file == from.files.end()) {
    PENSTOCK_TRY_ASSIGN(auto opened,
                        tiers::bounded_call<tiers::File>(reading, name, deadline_, [&files = files_, name] {
                          return files.open_to_read(name, tiers::DirectIo::preferred);
                        }));
    file = from.files.emplace(tensor.file, std::make_shared<tiers::File>(std::move(opened))).first;
  }
  const ByteCount size = std::min(tensor.block * window_blocks, tensor.size - begin);
  if (memory.bytes().size() < size) {
    PENSTOCK_TRY_ASSIGN(memory, PageBuffer::create(size));
  }
  const auto into = std::make_shared<PageBuffer>(std::move(memory));
  PENSTOCK_TRY(tiers::bounded_call<void>(
      reading, name, deadline_, [file = file->second, into, offset = tensor.offset + begin, size] {
        return file->read(offset, into->bytes().subspan({}, round_up(size, extent_alignment)));
      }));
  Window window{.tensor = &tensor, .begin = begin, .memory = std::move(*into)};
  window.bytes = window.memory.bytes().subspan({}, size);
  PENSTOCK_TRY(verify_blocks(name, tensor, begin, window.bytes));
  return window;
}

Result<HostSpan> CommittedStates::bytes_from(RankTensors& from, const CommittedTensor& tensor,
                                             ByteCount begin) {
  if (begin >= tensor.size) return lacks_elements(to_string(tensor.key));
  const ByteCount length = tensor.block * window_blocks;
  const ByteCount window_begin = length * (begin / length);
  auto found = std::find_if(windows_.begin(), windows_.end(), [&](const Window& window) {
    return window.tensor == &tensor && window.begin == window_begin;
  });
  if (found == windows_.end()) {
    PageBuffer memory;  // of the oldest window, since the kernel zeroes new memory
    if (windows_.size() == windows_max) {
      memory = std::move(windows_.back().memory);
      windows_.pop_back();
    }
    PENSTOCK_TRY_ASSIGN(auto loaded, load(from, tensor, window_begin, std::move(memory)));
    windows_.push_front(std::move(loaded));
  } else {
    windows_.splice(windows_.begin(), windows_, found);
  }
  const HostSpan bytes = windows_.front().bytes;
  return bytes.subspan(begin - window_begin, bytes.size() - (begin - window_begin));
}

/// The parameters of elements of `tile` from `first` on, which may be in several tensors.
Result<void> CommittedStates::copy_parameters(RankTensors& from, const FlatLayout& flat,
                                              const CommittedTensor& tile, std::uint64_t first, HostSpan to) {
  const ByteCount element = size_of(dtype_);
  for (ByteCount at; at < to.size();) {
    const std::uint64_t position = first + at / element;
    PENSTOCK_TRY_ASSIGN(const CommittedTensor* const shard,
                        find(from, flat, tiers::Purpose::parameter_shard, position));
    if (shard->step != tile.step) {
      return Error(ErrorCode::corrupted, reading)
          .object(flat.name)
          .reason("the parameters and the optimizer state are from different steps")
          .wanted("step " + std::to_string(shard->step))
          .got("step " + std::to_string(tile.step));
    }
    PENSTOCK_TRY_ASSIGN(const HostSpan bytes,
                        bytes_from(from, *shard, element * (position - shard->key.first)));
    const ByteCount some = std::min(bytes.size(), to.size() - at);
    std::memcpy(to.data() + at.value(), bytes.data(), some.value());
    at += some;
  }
  return ok();
}

Result<void> CommittedStates::read_tile(RankTensors& from, const FlatLayout& flat, std::uint64_t position,
                                        cpu_adam::StateKind kind, std::span<float>& values) {
  const cpu_adam::TileLayout layout =
      tile_layout(format_, dtype_,
                  optimizer_ == cpu_adam::Optimizer::muon && !flat.has_matrices() ? cpu_adam::Optimizer::adam
                                                                                  : optimizer_);
  if (!cpu_adam::keeps(layout.optimizer, kind)) {
    values = {};
    return ok();
  }
  PENSTOCK_TRY_ASSIGN(const CommittedTensor* const tile,
                      find(from, flat, tiers::Purpose::optimizer_tile, position));
  // A window begins at a block of the tile.
  const std::uint64_t window_elements = window_blocks * cpu_adam::block_elements.value();
  const std::uint64_t in_tile = position - tile->key.first;
  const std::uint64_t first = in_tile / window_elements * window_elements;
  const std::uint64_t elements = std::min(window_elements, tile->key.count - first);
  PENSTOCK_TRY_ASSIGN(const ByteCount begin, cpu_adam::tile_bytes(layout, ElementCount(first)));
  PENSTOCK_TRY_ASSIGN(const HostSpan state, bytes_from(from, *tile, begin));
  cpu_adam::OptimizerTile view{.state = state,
                               .elements = ElementCount(elements),
                               .gradient_dtype = dtype_,
                               .parameter_dtype = dtype_,
                               .format = layout.format,
                               .optimizer = layout.optimizer};
  std::vector<float> parameters;  // aligned for each dtype
  if (kind == cpu_adam::StateKind::master && cpu_adam::shares_parameter(layout.format)) {
    parameters.resize((size_of(dtype_) * elements).value() / sizeof(float) + 1);
    const HostSpan bytes(reinterpret_cast<std::byte*>(parameters.data()), size_of(dtype_) * elements);
    PENSTOCK_TRY(copy_parameters(from, flat, *tile, tile->key.first + first, bytes));
    view.parameter = bytes;
  }
  const std::size_t count = std::min<std::size_t>(values.size(), first + elements - in_tile);
  PENSTOCK_TRY(cpu_adam::read_states(view, kind, ElementCount(in_tile - first), values.first(count)));
  values = values.subspan(count);
  return ok();
}

Result<void> CommittedStates::read_frozen(RankTensors& from, const FlatLayout& flat, std::uint64_t position,
                                          std::span<float>& values) {
  PENSTOCK_TRY_ASSIGN(const CommittedTensor* const shard,
                      find(from, flat, tiers::Purpose::parameter_shard, position));
  const ByteCount element = size_of(dtype_);
  PENSTOCK_TRY_ASSIGN(const HostSpan bytes,
                      bytes_from(from, *shard, element * (position - shard->key.first)));
  const std::size_t count = std::min<std::size_t>(values.size(), bytes.size() / element);
  kernels::cast_elements({bytes.data(), dtype_}, {reinterpret_cast<std::byte*>(values.data()), DType::fp32},
                         count);
  values = values.subspan(count);
  return ok();
}

Result<void> CommittedStates::read(ParameterId parameter, cpu_adam::StateKind kind, std::uint64_t first,
                                   std::span<float> values) {
  const ParameterId committed = in_order_[first_of_unit_[parameter.unit] + parameter.index];
  const ShardLayout::Place place = shards_.place(committed);
  const FlatLayout& flat = shards_.flats()[place.flat];
  if (flat.frozen && kind != cpu_adam::StateKind::master) {
    return Error::invalid_argument(reading)
        .object(model_.parameter(committed).name)
        .reason("the parameter was frozen when it was committed, and has no optimizer states")
        .advice("keep its group frozen, or begin a new run from its values");
  }
  std::uint64_t position = place.begin.value() + first;
  while (!values.empty()) {
    PENSTOCK_TRY_ASSIGN(RankTensors* const from,
                        rank(static_cast<std::uint32_t>(position / flat.shard.value())));
    const std::uint64_t rank_end = (position / flat.shard.value() + 1) * flat.shard.value();
    std::span<float> of_rank = values.first(std::min<std::uint64_t>(values.size(), rank_end - position));
    const std::size_t asked = of_rank.size();
    PENSTOCK_TRY(flat.frozen ? read_frozen(*from, flat, position, of_rank)
                             : read_tile(*from, flat, position, kind, of_rank));
    const std::size_t got = asked - of_rank.size();
    if (got == 0) return lacks_elements(flat.name);
    values = values.subspan(got);
    position += got;
  }
  return ok();
}

}  // namespace penstock::zero
