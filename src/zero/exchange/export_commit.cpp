#include "zero/exchange/export_commit.hpp"

#include "base/number_text.hpp"
#include "kernels/host_kernels.hpp"
#include "zero/commit/committed_states.hpp"
#include "zero/commit/rank_directory.hpp"
#include "zero/commit/small_files.hpp"
#include "zero/exchange/safetensors_writer.hpp"
#include "zero/exchange/states_description.hpp"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <span>
#include <utility>

namespace penstock::zero::exchange {

namespace {

using cpu_adam::StateKind;

constexpr const char* operation = "export_commit";
constexpr std::uint64_t piece_elements = 1 << 18;  // that are read and written at a time

std::vector<std::uint64_t> shape_of(const ParameterLayout& parameter) {
  return parameter.shape.empty() ? std::vector{parameter.count.value()} : parameter.shape;
}

TensorToWrite tensor_of(const ModelLayout& model, ParameterId id, DType dtype, std::string name) {
  const ParameterLayout& parameter = model.parameter(id);
  return {.name = std::move(name), .dtype = dtype, .shape = shape_of(parameter), .count = parameter.count};
}

std::vector<TensorToWrite> weights_of(const ModelLayout& model, DType dtype) {
  std::vector<TensorToWrite> tensors;
  for (const ParameterId id : owned_parameters(model))
    tensors.push_back(tensor_of(model, id, dtype, full_name(model, id)));
  return tensors;
}

std::vector<TensorToWrite> states_of(const Manifest& manifest) {
  const ModelLayout& model = manifest.model;
  std::vector<TensorToWrite> tensors;
  for (const ParameterId id : owned_parameters(model)) {
    for (const StateKind kind : cpu_adam::all_states) {
      if (!keeps_state(manifest.optimizer, model.groups[model.parameter(id).group], kind)) continue;
      tensors.push_back(tensor_of(model, id, DType::fp32, state_name(kind, full_name(model, id))));
    }
  }
  return tensors;
}

ByteCount bytes_of_all(const std::vector<TensorToWrite>& tensors) {
  ByteCount bytes;
  for (const TensorToWrite& tensor : tensors) bytes += size_of(tensor.dtype) * tensor.count.value();
  return bytes;
}

/// Equal on all ranks, and in no other commit.
std::string name_of_commit(const Manifest& manifest) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64 "%016" PRIx64 "%016" PRIx64, manifest.run[0],
                manifest.run[1], manifest.attempt);
  return text.data();
}

StatesDescription description_of(const Manifest& manifest) {
  StatesDescription description{.layout = manifest.model,
                                .optimizer = manifest.optimizer,
                                .completed_steps = manifest.completed_steps,
                                .loss_scaler = manifest.loss_scaler,
                                .commit = name_of_commit(manifest)};
  description.layout.groups = manifest.groups;
  return description;
}

/// Makes the directory, or checks that it is empty.
Result<void> prepare_directory(tiers::FileSystem& files, const std::filesystem::path& directory) {
  const auto names = files.list(directory);
  if (!names && names.error().code() != ErrorCode::not_found) return names.error();
  if (names && names->empty()) return ok();
  if (names) {
    return Error(ErrorCode::already_exists, operation)
        .object(directory.string())
        .reason("the directory is not empty")
        .got(names->front())
        .advice("name another directory, or remove this one");
  }
  PENSTOCK_TRY(files.create_directory(directory));
  return files.sync_directory(directory_above(directory));
}

/// Copies the values of a commit into the tensors of two writers.
class Exporter {
 public:
  Exporter(const Manifest& manifest, CommittedStates states, const ExportOptions& options, DType dtype)
      : manifest_(manifest), states_(std::move(states)), options_(options), dtype_(dtype) {}

  Result<ExportReport> run() {
    PENSTOCK_TRY_ASSIGN(SafetensorsWriter weights,
                        create_writer("model", weights_of(manifest_.model, dtype_), {{"format", "pt"}}));
    ExportReport report{.dtype = dtype_, .tensors = weights.count(), .bytes = weights.size()};
    std::optional<SafetensorsWriter> states;
    if (options_.states) {
      const auto metadata = description_of(manifest_).to_metadata();
      if (const auto read = StatesDescription::from_metadata(metadata, "states"); !read) {
        return Error::unsupported(operation)
            .object("the layout of the model")
            .reason("an import could not read it")
            .note("cause   " + read.error().message())
            .advice("export without states; give each unit of the model a name of its own");
      }
      PENSTOCK_TRY_ASSIGN(SafetensorsWriter made, create_writer("states", states_of(manifest_), metadata));
      states.emplace(std::move(made));
      report.tensors += states->count();
      report.bytes += states->size();
    }
    PENSTOCK_TRY(prepare_directory(*options_.files, options_.directory));
    PENSTOCK_TRY(copy(weights, states ? &*states : nullptr));
    PENSTOCK_TRY(weights.finish());
    report.files = weights.names();
    if (states) {
      PENSTOCK_TRY(states->finish());
      for (std::string& name : states->names()) report.files.push_back(std::move(name));
      states->keep();
    }
    weights.keep();
    return report;
  }

 private:
  Result<SafetensorsWriter> create_writer(std::string stem, std::vector<TensorToWrite> tensors,
                                          std::map<std::string, std::string> metadata) const {
    return SafetensorsWriter::create({.files = options_.files,
                                      .directory = options_.directory,
                                      .stem = std::move(stem),
                                      .shard_max = options_.shard_max,
                                      .metadata = std::move(metadata)},
                                     std::move(tensors));
  }

  /// All states of a piece, then those of the next one: a tile has them side by side, and is read once.
  Result<void> copy(SafetensorsWriter& weights, SafetensorsWriter* states) {
    std::vector<float> memory(piece_elements);
    rounded_.resize(piece_elements);
    const auto parameters = owned_parameters(manifest_.model);
    std::size_t state = 0;  // the number of the parameter's first tensor among those of `states`
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const ParameterLayout& parameter = manifest_.model.parameter(parameters[i]);
      const OptimizerGroup& group = manifest_.model.groups[parameter.group];
      const std::uint64_t count = parameter.count.value();
      std::size_t kept = 0;
      for (std::uint64_t first = 0; first < count; first += piece_elements) {
        const std::span<float> values(memory.data(), std::min(piece_elements, count - first));
        kept = 0;
        for (const StateKind kind : cpu_adam::all_states) {
          if (!keeps_state(manifest_.optimizer, group, kind)) continue;
          if (kind != StateKind::master && states == nullptr) continue;
          PENSTOCK_TRY(states_.read(parameters[i], kind, first, values));
          if (kind == StateKind::master) PENSTOCK_TRY(write_weight(weights, i, parameters[i], first, values));
          if (states == nullptr) continue;
          PENSTOCK_TRY(write(*states, state + kept++, first, ConstHostSpan(values)));
        }
      }
      state += kept;
    }
    return ok();
  }

  Result<void> write(SafetensorsWriter& to, std::size_t tensor, std::uint64_t first, ConstHostSpan bytes) {
    PENSTOCK_TRY(to.write(tensor, first, bytes));
    written_ += bytes.size();
    if (options_.progress) options_.progress(written_);
    return ok();
  }

  Result<void> write_weight(SafetensorsWriter& to, std::size_t tensor, ParameterId id, std::uint64_t first,
                            std::span<float> values) {
    if (dtype_ == DType::fp32) return write(to, tensor, first, ConstHostSpan(values));
    auto* const rounded = reinterpret_cast<std::byte*>(rounded_.data());
    kernels::cast_elements({reinterpret_cast<const std::byte*>(values.data()), DType::fp32},
                           {rounded, dtype_}, values.size());
    const std::uint16_t infinite = dtype_ == DType::fp16 ? 0x7c00 : 0x7f80;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if ((rounded_[i] & 0x7fff) != infinite || std::isinf(values[i])) continue;
      return Error(ErrorCode::non_finite, operation)
          .object(full_name(manifest_.model, id) + ", element " + std::to_string(first + i))
          .reason("the type of the export does not hold the number")
          .wanted("a number that is finite in " + std::string(to_string(dtype_)))
          .got(number_text(values[i]))
          .advice(dtype_ == DType::fp16 ? "choose --dtype bf16 or fp32" : "choose --dtype fp32");
    }
    return write(to, tensor, first, {rounded, size_of(dtype_) * values.size()});
  }

  const Manifest& manifest_;
  CommittedStates states_;
  const ExportOptions& options_;
  const DType dtype_;
  std::vector<std::uint16_t> rounded_;
  ByteCount written_;
};

}  // namespace

ByteCount export_size(const Manifest& manifest, const ExportOptions& options) {
  const ByteCount weights = bytes_of_all(weights_of(manifest.model, options.dtype.value_or(manifest.dtype)));
  return options.states ? weights + bytes_of_all(states_of(manifest)) : weights;
}

Result<ExportReport> export_commit(const std::vector<Manifest>& manifests, const ExportOptions& options) {
  const Manifest& first = manifests.front();
  const auto load = [&manifests](std::uint32_t rank) -> Result<Manifest> { return manifests[rank]; };
  PENSTOCK_TRY_ASSIGN(CommittedStates states,
                      CommittedStates::open(*options.files, first, load, first.model, first.optimizer,
                                            RankDirectory::Options().deadline));
  return Exporter(first, std::move(states), options, options.dtype.value_or(first.dtype)).run();
}

}  // namespace penstock::zero::exchange
