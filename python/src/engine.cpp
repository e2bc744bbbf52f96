// The engine of ZeRO-3, of which penstock.torch.shard is made: its configuration, layout and ranks.
#include "engine.hpp"
#include "arguments.hpp"
#include "bind.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

namespace penstock::python {

namespace {

template <class Lines>
nb::list lines_of(const Lines& call) {
  penstock_lines* lines = nullptr;
  run([&] { return call(&lines); });
  return to_list(lines);
}

penstock_report_options report_options(const char* function, const std::string& format, bool with_changes) {
  return {.size = sizeof(penstock_report_options),
          .format = number_of(format, report_formats, function, "format"),
          .with_changes = with_changes ? 1 : 0};
}

float value_of(const void* values, penstock_dtype dtype, std::uint64_t index) {
  if (dtype == PENSTOCK_FP32) return static_cast<const float*>(values)[index];
  if (dtype == PENSTOCK_FP16) return static_cast<float>(static_cast<const _Float16*>(values)[index]);
  const std::uint32_t bits = std::uint32_t{static_cast<const std::uint16_t*>(values)[index]} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Throws InvalidArgument for another number than the layout has.
void check_count(const char* function, const std::string& of, std::uint64_t got, std::uint64_t wanted) {
  if (got == wanted) return;
  refuse({.function = function,
          .argument = of.c_str(),
          .reason = "it is another number than the layout has",
          .wanted = std::to_string(wanted),
          .got = std::to_string(got)});
}

std::uint64_t size_of(penstock_dtype dtype) {
  return dtype == PENSTOCK_FP32 ? 4 : 2;
}

}  // namespace

Config::Config(const std::string& text, const std::string& name, std::uint32_t world_size) {
  const penstock_config_options options{.size = sizeof(options), .world_size = world_size};
  penstock_config* made = nullptr;
  run([&] { return penstock_config_parse(text.c_str(), name.c_str(), &options, &made); });
  handle_ = {made, "Config"};
}
std::string Config::json() const {
  return penstock_config_json(get("Config.json").get());
}
nb::list Config::notes() const {
  const auto config = get("Config.notes");
  return lines_of([&](penstock_lines** lines) { return penstock_config_notes(config.get(), lines); });
}

Layout::Layout() {
  penstock_layout* made = nullptr;
  run([&] { return penstock_layout_create(&made); });
  handle_ = {made, "Layout"};
}
std::uint32_t Layout::add_unit(const std::string& name) {
  const auto layout = get("Layout.add_unit");
  std::uint32_t unit = 0;
  run([&] { return penstock_layout_add_unit(layout.get(), name.c_str(), &unit); });
  elements_.emplace_back();
  return unit;
}
void Layout::add_parameter(std::uint32_t unit, const std::string& name,
                           const std::vector<std::uint64_t>& shape, std::uint32_t group) {
  const auto layout = get("Layout.add_parameter");
  const penstock_parameter_options options{.size = sizeof(options),
                                           .name = name.c_str(),
                                           .shape = shape.data(),
                                           .dimensions = shape.size(),
                                           .group = group};
  run([&] { return penstock_layout_add_parameter(layout.get(), unit, &options, nullptr); });
  elements_[unit].push_back(
      std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>()));
}
std::uint32_t Layout::add_group(bool frozen, std::optional<double> learning_rate_factor,
                                std::optional<double> weight_decay) {
  const auto layout = get("Layout.add_group");
  const penstock_group_options options{
      .size = sizeof(options),
      .given = (learning_rate_factor ? std::uint32_t{PENSTOCK_GROUP_LEARNING_RATE_FACTOR} : 0u) |
               (weight_decay ? std::uint32_t{PENSTOCK_GROUP_WEIGHT_DECAY} : 0u),
      .frozen = frozen ? 1 : 0,
      .learning_rate_factor = learning_rate_factor.value_or(0),
      .weight_decay = weight_decay.value_or(0)};
  std::uint32_t group = 0;
  run([&] { return penstock_layout_add_group(layout.get(), &options, &group); });
  return group;
}

namespace {

penstock_process_group* join() {
  penstock_process_group* made = nullptr;
  run([&] { return penstock_process_group_join(nullptr, &made); });
  return made;
}

}  // namespace

ProcessGroup::ProcessGroup() : ProcessGroup(join()) {}
ProcessGroup::ProcessGroup(penstock_process_group* made) : handle_(made, "ProcessGroup") {
  check(penstock_process_group_identity(made, &identity_));
}
ProcessGroup ProcessGroup::split(std::uint32_t color) const {
  const auto group = get("ProcessGroup.split");
  penstock_process_group* part = nullptr;
  run([&] { return penstock_process_group_split(group.get(), color, &part); });
  return ProcessGroup(part);
}

nb::list ProcessGroup::gather(const std::string& label, nb::bytes mine) const {
  const auto group = get("ProcessGroup.gather");
  std::vector<char> all(mine.size() * identity_.ranks);
  run([&] {
    return penstock_process_group_gather(group.get(), label.c_str(), mine.data(), mine.size(), all.data());
  });
  nb::list parts;
  for (std::uint32_t rank = 0; rank < identity_.ranks; ++rank)
    parts.append(nb::bytes(all.data() + rank * mine.size(), mine.size()));
  return parts;
}

Engine::Engine(const Config& config, const Layout& layout, const ProcessGroup* group) {
  const auto read = config.get("Engine");
  const auto units = layout.get("Engine");
  const auto ranks = group == nullptr ? nullptr : group->get("Engine");
  const penstock_engine_options options{
      .size = sizeof(options), .config = read.get(), .layout = units.get(), .group = ranks.get()};
  penstock_engine* made = nullptr;
  run([&] { return penstock_engine_create(&options, &made); });
  engine_ = {made, "Engine"};
  penstock_stream* stream = nullptr;
  run([&] { return penstock_stream_create(made, &stream); });
  stream_ = {stream, "Engine"};
  group_ = ranks;
  elements_ = layout.elements();
}

void Engine::close() {
  engine_.check_process("Engine.close");
  stream_.close();
  engine_.close();
  group_.reset();
}

void Engine::initialize(const std::vector<std::vector<Source>>& values) {
  constexpr const char* function = "Engine.initialize";
  using Values = std::vector<std::vector<penstock_source>>;
  check_count(function, "units", values.size(), elements_.size());
  Values sources;
  for (std::size_t unit = 0; unit < values.size(); ++unit) {
    const std::string number = std::to_string(unit);
    check_count(function, "parameters of unit " + number, values[unit].size(), elements_[unit].size());
    sources.push_back(sources_of(values[unit], function));
    for (std::size_t i = 0; i < sources.back().size(); ++i) {
      check_count(function, "elements of parameter " + std::to_string(i) + " of unit " + number,
                  sources.back()[i].elements, elements_[unit][i]);
    }
  }
  const auto engine = engine_.get(function);
  const penstock_fill fill = [](void* user, std::uint32_t unit, std::uint32_t parameter, std::uint64_t first,
                                std::uint64_t count, float* into) -> std::int32_t {
    const penstock_source& from = (*static_cast<const Values*>(user))[unit][parameter];
    for (std::uint64_t i = 0; i < count; ++i) into[i] = value_of(from.data, from.dtype, first + i);
    return 0;
  };
  run([&] { return penstock_engine_initialize(engine.get(), fill, &sources); });
}

void Engine::begin_step(std::optional<std::uint32_t> micro_batches, std::optional<double> learning_rate) {
  const auto engine = engine_.get("Engine.begin_step");
  const penstock_step_options options{.size = sizeof(options),
                                      .micro_batches = micro_batches.value_or(0),
                                      .has_learning_rate = learning_rate ? 1 : 0,
                                      .learning_rate = learning_rate.value_or(0)};
  run([&] { return penstock_engine_begin_step(engine.get(), &options); });
}

void Engine::gather(std::uint32_t unit, const std::vector<Address>& into) {
  constexpr const char* function = "Engine.gather";
  const auto engine = engine_.get(function);
  const auto stream = stream_.get(function);
  if (unit < elements_.size()) check_count(function, "addresses", into.size(), elements_[unit].size());
  run([&]() -> penstock_error* {
    penstock_unit* lease = nullptr;
    penstock_error* error = penstock_unit_begin(engine.get(), unit, stream.get(), &lease);
    if (error == nullptr) error = penstock_stream_synchronize(stream.get());
    for (std::size_t i = 0; i < into.size() && error == nullptr; ++i) {
      penstock_view view{.size = sizeof(view)};
      error = penstock_unit_parameter(lease, i, &view);
      if (error == nullptr && into[i] != 0)
        std::memcpy(reinterpret_cast<void*>(into[i]), view.data, view.elements * size_of(view.dtype));
    }
    penstock_unit_end(lease);
    return error;
  });
}

void Engine::reduce(std::uint32_t unit, const std::vector<Source>& gradients) {
  constexpr const char* function = "Engine.reduce";
  const auto sources = sources_of(gradients, function);
  const auto engine = engine_.get(function);
  const auto stream = stream_.get(function);
  run([&]() -> penstock_error* {
    penstock_error* const error =
        penstock_engine_reduce(engine.get(), unit, sources.data(), sources.size(), stream.get());
    return error != nullptr ? error : penstock_stream_synchronize(stream.get());
  });
}

nb::dict Engine::step() {
  const auto engine = engine_.get("Engine.step");
  penstock_step_outcome outcome{.size = sizeof(outcome)};
  run([&] { return penstock_engine_step(engine.get(), &outcome); });
  nb::dict fields;
  fields["updated"] = outcome.updated != 0;
  fields["skip_reason"] = penstock_engine_skip_reason(engine.get());
  fields["gradient_norm"] = outcome.gradient_norm;
  fields["clip_factor"] = outcome.clip_factor;
  fields["learning_rate"] = outcome.learning_rate;
  fields["loss_scale"] = outcome.loss_scale;
  fields["step"] = outcome.step;
  return fields;
}

void Engine::finish_update() {
  const auto engine = engine_.get("Engine.finish_update");
  run([&] { return penstock_engine_finish_update(engine.get()); });
}

void Engine::abandon_step(const std::string& cause) {
  constexpr const char* function = "Engine.abandon_step";
  const auto engine = engine_.get(function);
  const auto stream = stream_.get(function);
  run([&] { return penstock_engine_abandon_step(engine.get(), stream.get(), cause.c_str()); });
}

nb::dict Engine::report() const {
  const auto engine = engine_.get("Engine.report");
  penstock_engine_report report{.size = sizeof(report)};
  run([&] { return penstock_engine_get_report(engine.get(), &report); });
  constexpr const char* statuses[] = {"ready", "interrupted", "failed"};
  nb::dict fields;
  fields["status"] = statuses[std::clamp(report.status, 0, 2)];
  fields["completed_steps"] = report.completed_steps;
  fields["skipped_steps"] = report.skipped_steps;
  fields["loss_scale"] = report.loss_scale;
  fields["device_bytes"] = report.device_bytes;
  fields["host_bytes"] = report.host_bytes;
  fields["nvme_bytes"] = report.nvme_bytes;
  return fields;
}

nb::str Engine::report_text(const std::string& format, bool with_changes) const {
  constexpr const char* function = "Engine.report_text";
  const auto options = report_options(function, format, with_changes);
  const auto engine = engine_.get(function);
  penstock_lines* texts = nullptr;
  run([&] { return penstock_engine_report_text(engine.get(), &options, &texts); });
  return to_text(texts);
}

void Engine::save_report(const FilePath& file, const std::optional<std::string>& format,
                         bool with_changes) const {
  constexpr const char* function = "Engine.save_report";
  const std::string name = file.get(function, "file");
  const auto options = report_options(function, report_format(format, name), with_changes);
  const auto engine = engine_.get(function);
  run([&] { return penstock_engine_save_report(engine.get(), &options, name.c_str()); });
}

void Engine::write_events(const std::vector<std::tuple<std::string, double, std::uint64_t>>& events) {
  std::vector<penstock_monitor_event> given;
  for (const auto& [name, value, place] : events)
    given.push_back(
        {.size = sizeof(penstock_monitor_event), .name = name.c_str(), .value = value, .place = place});
  const auto engine = engine_.get("Engine.write_events");
  run([&] { return penstock_engine_write_events(engine.get(), given.data(), given.size()); });
}

nb::list Engine::take_messages() {
  const auto engine = engine_.get("Engine.take_messages");
  return lines_of([&](penstock_lines** lines) { return penstock_engine_take_messages(engine.get(), lines); });
}

nb::list Engine::notes() const {
  const auto engine = engine_.get("Engine.notes");
  return lines_of([&](penstock_lines** lines) { return penstock_engine_notes(engine.get(), lines); });
}

std::uint64_t Engine::limit_memory(const Count& most) {
  const std::uint64_t bytes = most.get("Engine.limit_memory", "most");
  const auto engine = engine_.get("Engine.limit_memory");
  std::uint64_t used = 0;
  run([&] { return penstock_engine_limit_memory(engine.get(), bytes, &used); });
  return used;
}

std::uint64_t Engine::memory_least() const {
  const auto engine = engine_.get("Engine.memory_least");
  std::uint64_t bytes = 0;
  run([&] { return penstock_engine_memory_least(engine.get(), &bytes); });
  return bytes;
}

void Engine::begin_trace() {
  const auto engine = engine_.get("Engine.begin_trace");
  run([&] { return penstock_engine_begin_trace(engine.get()); });
}

void Engine::save_trace(const FilePath& file, const std::string& label) {
  constexpr const char* function = "Engine.save_trace";
  const std::string name = file.get(function, "file");
  const char* const text = text_of(label, function, "label");
  const auto engine = engine_.get(function);
  run([&] { return penstock_engine_save_trace(engine.get(), text, name.c_str()); });
}

std::string Engine::digest() const {
  const auto engine = engine_.get("Engine.digest");
  char digest[33] = {};
  run([&] { return penstock_engine_digest(engine.get(), digest); });
  return digest;
}

void Engine::commit(nb::bytes client) {
  const auto engine = engine_.get("Engine.commit");
  run([&] { return penstock_engine_commit(engine.get(), client.data(), client.size(), nullptr); });
}

std::string Engine::save_checkpoint(const std::string& directory, nb::bytes client, const Count& keep) {
  const auto engine = engine_.get("Engine.save_checkpoint");
  const penstock_save_options options{.size = sizeof(options),
                                      .client = client.data(),
                                      .client_bytes = client.size(),
                                      .keep = keep.get<std::uint32_t>("save_checkpoint", "keep")};
  const nb::list path = lines_of([&](penstock_lines** lines) {
    return penstock_engine_save_checkpoint(engine.get(), directory.c_str(), &options, lines);
  });
  return nb::cast<std::string>(path[0]);
}

nb::object Engine::resume() {
  const auto engine = engine_.get("Engine.resume");
  penstock_resumed* resumed = nullptr;
  run([&] { return penstock_engine_resume(engine.get(), &resumed); });
  return of_resumed(resumed);
}

nb::object Engine::load_checkpoint(const std::string& directory) {
  const auto engine = engine_.get("Engine.load_checkpoint");
  penstock_resumed* resumed = nullptr;
  run([&] { return penstock_engine_load_checkpoint(engine.get(), directory.c_str(), &resumed); });
  return of_resumed(resumed);
}

nb::object Engine::of_resumed(penstock_resumed* resumed) {
  if (resumed == nullptr) return nb::none();
  const Handle<penstock_resumed, penstock_resumed_free> owner(resumed, "Resumed");
  penstock_resumed_report report{.size = sizeof(report)};
  check(penstock_resumed_get_report(resumed, &report));
  nb::dict fields;
  fields["step"] = report.step;
  fields["generation"] = report.generation;
  fields["ranks"] = report.ranks;
  fields["client"] = nb::bytes(report.client, report.client_bytes);
  fields["notes"] = lines_of([&](penstock_lines** lines) { return penstock_resumed_notes(resumed, lines); });
  return fields;
}

std::vector<penstock_source> Engine::sources_of(const std::vector<Source>& given, const char* function) {
  std::vector<penstock_source> sources;
  for (const auto& [address, elements, dtype] : given) {
    sources.push_back({.size = sizeof(penstock_source),
                       .data = reinterpret_cast<const void*>(address),
                       .elements = elements,
                       .dtype = number_of(dtype, dtypes, function, "dtype")});
  }
  return sources;
}

void bind_engine(nb::module_& module) {
  nb::class_<Config>(module, "Config",
                     "A ds_config.json that was read. name: stands for the file in messages.")
      .def(nb::init<const std::string&, const std::string&, std::uint32_t>(), nb::arg("text"),
           nb::arg("name"), nb::arg("world_size") = 1)
      .def_prop_ro("json", &Config::json, "The effective configuration.")
      .def_prop_ro("notes", &Config::notes, "Keys that have no effect here, and other things to know.");
  nb::class_<Layout>(module, "Layout",
                     "Units of parameters that are gathered together, in the order of the forward.")
      .def(nb::init<>())
      .def("add_unit", &Layout::add_unit, nb::arg("name"))
      .def("add_parameter", &Layout::add_parameter, nb::arg("unit"), nb::arg("name"), nb::arg("shape"),
           nb::arg("group") = 0)
      .def("add_group", &Layout::add_group, nb::kw_only(), nb::arg("frozen") = false,
           nb::arg("learning_rate_factor") = nb::none(), nb::arg("weight_decay") = nb::none());
  nb::class_<ProcessGroup>(
      module, "ProcessGroup",
      "The ranks of a run, as the launcher says (torchrun, mpirun, srun); see docs/processes.md.")
      .def(nb::init<>())
      .def_prop_ro("rank", &ProcessGroup::rank)
      .def_prop_ro("ranks", &ProcessGroup::ranks)
      .def_prop_ro("local_rank", &ProcessGroup::local_rank)
      .def("split", &ProcessGroup::split, nb::arg("color"),
           "The group of the ranks that call it with one color.")
      .def("gather", &ProcessGroup::gather, nb::arg("label"), nb::arg("mine"),
           nb::sig("def gather(self, label: str, mine: bytes) -> list[bytes]"), "The bytes of all ranks.");
  nb::class_<Engine>(module, "Engine", R"(One rank of a run of ZeRO-3 whose units are computed in host memory.

penstock.torch.shard is made of it; include/penstock/c/engine.h documents the calls. Gradients and values are (address,
elements, dtype), with address 0 where there is none; memory is contiguous and the caller keeps it alive.)")
      .def(nb::init<const Config&, const Layout&, const ProcessGroup*>(), nb::arg("config"),
           nb::arg("layout"), nb::arg("group").none() = nb::none())
      .def("initialize", &Engine::initialize, nb::arg("values"), "Sets the values of each unit's parameters.")
      .def("begin_step", &Engine::begin_step, nb::arg("micro_batches") = nb::none(),
           nb::arg("learning_rate") = nb::none())
      .def("gather", &Engine::gather, nb::arg("unit"), nb::arg("into"),
           "Copies a unit's parameters, in the configuration's type, to an address each.")
      .def("reduce", &Engine::reduce, nb::arg("unit"), nb::arg("gradients"))
      .def("step", &Engine::step, nb::sig("def step(self) -> dict[str, typing.Any]"))
      .def("finish_update", &Engine::finish_update)
      .def("abandon_step", &Engine::abandon_step, nb::arg("cause"))
      .def("report", &Engine::report, nb::sig("def report(self) -> dict[str, typing.Any]"))
      .def("report_text", &Engine::report_text, nb::arg("format"), nb::arg("with_changes"))
      .def("save_report", &Engine::save_report, nb::arg("file"), nb::arg("format").none(),
           nb::arg("with_changes"))
      .def("write_events", &Engine::write_events, nb::arg("events"))
      .def_prop_ro("notes", &Engine::notes)
      .def("take_messages", &Engine::take_messages)
      .def("limit_memory", &Engine::limit_memory, nb::arg("most"))
      .def("memory_least", &Engine::memory_least)
      .def("begin_trace", &Engine::begin_trace)
      .def("save_trace", &Engine::save_trace, nb::arg("file"), nb::arg("label") = "")
      .def("digest", &Engine::digest)
      .def("commit", &Engine::commit, nb::arg("client"))
      .def("save_checkpoint", &Engine::save_checkpoint, nb::arg("directory"), nb::arg("client"),
           nb::arg("keep"))
      .def("resume", &Engine::resume, nb::sig("def resume(self) -> dict[str, typing.Any] | None"))
      .def("load_checkpoint", &Engine::load_checkpoint, nb::arg("directory"),
           nb::sig("def load_checkpoint(self, directory: str) -> dict[str, typing.Any]"))
      .def("close", &Engine::close);
}

}  // namespace penstock::python
