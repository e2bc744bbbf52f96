#include "zero/exchange/import_states.hpp"

#include "zero/commit/rank_directory.hpp"
#include "zero/config/json_text.hpp"
#include "zero/exchange/states_description.hpp"
#include "zero/exchange/tensor_files.hpp"

#include <penstock/zero/rank.hpp>

#include <set>
#include <span>
#include <string>
#include <utility>

namespace penstock::zero::exchange {

namespace {

using cpu_adam::StateKind;

constexpr const char* operation = "import_states";

/// The states that were exported, and the layout by which they are asked for.
struct Source {
  TensorFiles files;
  StatesDescription description;
};

Result<void> check_optimizer(const Source& source, const Config& config) {
  const auto refuse = [](const char* key) { return Error::invalid_config(operation).object(key); };
  if (cpu_adam::is_custom(config.optimizer.type)) {
    return refuse("optimizer.type")
        .reason("the trainer has the function of a custom optimizer")
        .got("Custom")
        .advice("restore the states in the trainer, see Engine::restore()");
  }
  if (source.description.optimizer == config.optimizer.type) return ok();
  return refuse("optimizer.type")
      .reason("the states are those of another optimizer")
      .wanted(std::string(to_string(source.description.optimizer)))
      .got(std::string(to_string(config.optimizer.type)));
}

/// Checks that there is each state, and no other tensor.
Result<void> check_tensors(const Source& source) {
  const ModelLayout& model = source.description.layout;
  std::set<std::string> used;
  for (const ParameterId id : owned_parameters(model)) {
    const ParameterLayout& parameter = model.parameter(id);
    for (const StateKind kind : cpu_adam::all_states) {
      if (!keeps_state(source.description.optimizer, model.groups[parameter.group], kind)) continue;
      const std::string name = state_name(kind, full_name(model, id));
      PENSTOCK_TRY(source.files.check(name, parameter.count, parameter.shape));
      used.insert(name);
    }
  }
  for (const std::string& name : source.files.names()) {
    if (used.contains(name)) continue;
    return Error::invalid_argument(operation)
        .object("tensor " + config::printable(name))
        .reason("no parameter of the layout has this state")
        .advice("give the layout of the run that was exported, or files with its states alone");
  }
  return ok();
}

/// A directory may have files of two exports, where a copy of one over another has not ended.
Result<void> check_one_export(std::span<const CheckpointFile> files) {
  const auto& first = files.front().header.metadata;
  for (const CheckpointFile& file : files) {
    for (const auto& [key, value] : file.header.metadata) {
      const auto same = first.find(key);
      if (!key.starts_with("penstock.") || same == first.end() || same->second == value) continue;
      constexpr std::size_t shown_max = 80;
      return Error::invalid_argument(operation)
          .object(file.path.string())
          .reason("it is of another export than " + files.front().path.filename().string())
          .wanted(key + " " + config::printable(same->second.substr(0, shown_max)))
          .got(config::printable(value.substr(0, shown_max)))
          .advice("bring together the files of one export");
    }
  }
  return ok();
}

Result<Source> open_source(const ImportOptions& options) {
  PENSTOCK_TRY_ASSIGN(TensorFiles files, TensorFiles::open(options.states, "states"));
  PENSTOCK_TRY(check_one_export(files.files()));
  const CheckpointFile& first = files.files().front();
  PENSTOCK_TRY_ASSIGN(StatesDescription description,
                      StatesDescription::from_metadata(first.header.metadata, first.path.string()));
  if (options.layout) {
    if (options.layout->groups.size() > description.layout.groups.size()) {
      return Error::invalid_argument(operation)
          .object("the layout's optimizer groups")
          .wanted("at most " + std::to_string(description.layout.groups.size()) + ", those of the states")
          .got(options.layout->groups.size());
    }
    auto groups = std::move(description.layout.groups);
    description.layout = *options.layout;
    description.layout.groups = std::move(groups);
  }
  PENSTOCK_TRY(description.layout.validate());
  Source source{std::move(files), std::move(description)};
  PENSTOCK_TRY(check_optimizer(source, options.config));
  PENSTOCK_TRY(check_tensors(source));
  return source;
}

/// That of one rank which keeps everything on disk: what it needs of memory does not depend on the model's size.
Config config_of(const ImportOptions& options) {
  Config config;
  config.stage = 3;
  config.offload_param = {.device = OffloadDevice::nvme, .nvme_paths = options.directories};
  config.offload_optimizer = config.offload_param;
  config.dtype = options.config.dtype;
  config.grad_accum_dtype = options.config.grad_accum_dtype;
  config.loss_scale = options.config.loss_scale;
  config.dynamic_loss_scale = options.config.dynamic_loss_scale;
  config.optimizer = options.config.optimizer;
  config.penstock.state_format = options.config.penstock.state_format;
  config.penstock.io_engine = options.config.penstock.io_engine;
  config.penstock.threads = options.config.penstock.threads;
  config.penstock.durable_directories = options.directories;
  return config;
}

/// An import that has failed leaves files without a manifest, which another one replaces.
Result<void> check_new_directories(const ImportOptions& options) {
  for (const std::filesystem::path& directory : options.directories) {
    const RankDirectory::Options one{.directories = {directory}};
    const auto ranks = RankDirectory::ranks(one);
    if (!ranks && ranks.error().code() != ErrorCode::not_found) return ranks.error();
    if (!ranks) continue;
    for (const std::uint32_t rank : *ranks) {
      PENSTOCK_TRY_ASSIGN(const auto manifests, RankDirectory::manifests_of(one, rank));
      PENSTOCK_TRY_ASSIGN(const auto marks, RankDirectory::marks_of(one, rank));
      if (manifests.empty() && marks.empty()) continue;
      return Error(ErrorCode::already_exists, operation)
          .object(directory.string())
          .reason("a run has used the directory")
          .advice("name another directory, or remove this one");
    }
  }
  return ok();
}

ByteCount bytes_of_states(const StatesDescription& description) {
  const ModelLayout& model = description.layout;
  ByteCount bytes;
  for (const ParameterId id : owned_parameters(model)) {
    const ParameterLayout& parameter = model.parameter(id);
    for (const StateKind kind : cpu_adam::all_states) {
      if (keeps_state(description.optimizer, model.groups[parameter.group], kind))
        bytes += size_of(DType::fp32) * parameter.count.value();
    }
  }
  return bytes;
}

}  // namespace

Result<ImportReport> import_states(const ImportOptions& options) {
  PENSTOCK_TRY_ASSIGN(Source source, open_source(options));
  PENSTOCK_TRY(check_new_directories(options));
  const StatesDescription& description = source.description;
  const ModelLayout& model = description.layout;
  PENSTOCK_TRY_ASSIGN(auto rank, Rank::create({.config = config_of(options), .model = model}));
  Engine& engine = rank->engine();
  const ByteCount all = bytes_of_states(description);
  ImportReport report{.step = description.completed_steps, .parameters = owned_parameters(model).size()};
  PENSTOCK_TRY(engine.restore(description.completed_steps,
                              [&](ParameterId parameter, StateKind kind, std::uint64_t first,
                                  std::span<float> values) -> Result<void> {
                                const OptimizerGroup& group = model.groups[model.parameter(parameter).group];
                                if (!keeps_state(description.optimizer, group, kind)) return ok();
                                report.bytes += HostSpan(values).size();
                                if (options.progress) options.progress(report.bytes, all);
                                return source.files.read(state_name(kind, full_name(model, parameter)), first,
                                                         values);
                              }));
  if (engine.loss_scaler().is_dynamic()) PENSTOCK_TRY(engine.restore_loss_scaler(description.loss_scaler));
  PENSTOCK_TRY(engine.commit());
  return report;
}

}  // namespace penstock::zero::exchange
