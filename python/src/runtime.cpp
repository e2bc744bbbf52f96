// penstock.Runtime and penstock.Path: tensors in host memory under a budget and in swap files.
#include "runtime.hpp"
#include "arguments.hpp"
#include "bind.hpp"
#include "count.hpp"
#include "file_path.hpp"
#include "tensor.hpp"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

const Choices evictions{{"planned", PENSTOCK_EVICT_PLANNED},
                        {"lru", PENSTOCK_EVICT_LRU},
                        {"reuse_distance", PENSTOCK_EVICT_REUSE_DISTANCE}};

/// The members of a Path, which pickle knows.
using PathState = std::tuple<std::filesystem::path, std::uint64_t, double, std::uint64_t, std::uint64_t,
                             std::string, double, double, std::uint64_t>;

Tensor add(const Runtime& to, const std::string& name, const Count& nbytes, bool in_memory, bool write_behind,
           bool home_in_memory) {
  const std::uint64_t bytes = nbytes.get("Runtime.add", "nbytes");
  const auto runtime = to.handle()->get("Runtime.add");
  const penstock_tensor_options options{.size = sizeof(options),
                                        .name = name.c_str(),
                                        .bytes = bytes,
                                        .in_memory = in_memory ? 1 : 0,
                                        .write_behind = write_behind ? 1 : 0,
                                        .home_in_memory = home_in_memory ? 1 : 0};
  penstock_tensor tensor = 0;
  run([&] { return penstock_runtime_add(runtime.get(), &options, &tensor); });
  return {to.handle(), tensor, name, bytes};
}

template <class Call>
nb::list lines(const Runtime& of, const char* function, const Call& called) {
  const auto runtime = of.handle()->get(function);
  penstock_lines* texts = nullptr;
  run([&] { return called(runtime.get(), &texts); });
  return to_list(texts);
}

penstock_report_options report_options(const char* function, const std::string& format, double elapsed,
                                       const Count& rank) {
  return {.size = sizeof(penstock_report_options),
          .format = number_of(format, report_formats, function, "format"),
          .rank = rank.get<std::uint32_t>(function, "rank"),
          .elapsed_seconds = elapsed};
}

}  // namespace

Runtime::Runtime(const Count& host_budget, const std::vector<Path>& paths, const std::string& pinning,
                 const std::string& eviction, const Count& lookahead, const Count& reuse_distance_max,
                 const std::optional<FilePath>& timeline_file) {
  std::vector<penstock_path> given;
  for (const Path& path : paths) {
    given.push_back({.size = sizeof(penstock_path),
                     .directory = path.directory.c_str(),
                     .capacity = path.capacity,
                     .weight = path.weight,
                     .request_max = path.request_max,
                     .in_flight_max = path.in_flight_max,
                     .engine = number_of(path.engine, io_engines, "Path", "engine"),
                     .deadline_seconds = path.deadline_seconds,
                     .limit = path.limit,
                     .endurance = path.endurance});
  }
  const std::uint64_t distance = reuse_distance_max.get("Runtime", "reuse_distance_max");
  if (distance != 0 && eviction != "reuse_distance") {
    refuse({.function = "Runtime",
            .argument = "reuse_distance_max",
            .reason = "eviction \"" + eviction + "\" knows none",
            .wanted = "0",
            .got = std::to_string(distance),
            .advice = "leave it out, or choose eviction \"reuse_distance\""});
  }
  const std::string timeline = timeline_file ? timeline_file->get("Runtime", "timeline_file") : "";
  const penstock_runtime_options options{
      .size = sizeof(options),
      .host_budget = host_budget.get("Runtime", "host_budget"),
      .paths = given.data(),
      .path_count = given.size(),
      .pinning = number_of(pinning, pinnings, "Runtime", "pinning"),
      .eviction = number_of(eviction, evictions, "Runtime", "eviction"),
      // 0 is C's default; no tensor fits into 1.
      .lookahead = std::max<std::uint64_t>(lookahead.get("Runtime", "lookahead"), 1),
      .reuse_distance_max = distance,
      .timeline_file = timeline_file ? timeline.c_str() : nullptr,
  };
  penstock_runtime* made = nullptr;
  run([&] { return penstock_runtime_create(&options, &made); });
  handle_ = std::make_shared<Owner>(made, "Runtime");
}

std::uint64_t Runtime::park() {
  const auto runtime = handle_->get("Runtime.park");
  std::uint64_t given_back = 0;
  run([&] { return penstock_runtime_park(runtime.get(), &given_back); });
  return given_back;
}

std::uint64_t Runtime::limit_memory(const Count& most) {
  const std::uint64_t bytes = most.get("Runtime.limit_memory", "most");
  const auto runtime = handle_->get("Runtime.limit_memory");
  std::uint64_t used = 0;
  run([&] { return penstock_runtime_limit_memory(runtime.get(), bytes, &used); });
  return used;
}

std::uint64_t Runtime::memory_least() {
  const auto runtime = handle_->get("Runtime.memory_least");
  std::uint64_t bytes = 0;
  run([&] { return penstock_runtime_memory_least(runtime.get(), &bytes); });
  return bytes;
}

void Runtime::save_trace(const FilePath& file, const std::string& label) {
  constexpr const char* function = "Runtime.save_trace";
  const std::string name = file.get(function, "file");
  const char* const text = text_of(label, function, "label");
  const auto runtime = handle_->get(function);
  run([&] { return penstock_runtime_save_trace(runtime.get(), text, name.c_str()); });
}

void Runtime::predict_trace(const FilePath& file) {
  const std::string name = file.get("Runtime.predict_trace", "file");
  const auto runtime = handle_->get("Runtime.predict_trace");
  run([&] { return penstock_runtime_predict_trace(runtime.get(), name.c_str()); });
}

std::pair<std::uintptr_t, std::uint64_t> Runtime::host_memory() {
  const auto runtime = handle_->get("Runtime.host_memory");
  void* data = nullptr;
  std::uint64_t bytes = 0;
  run([&] { return penstock_runtime_host_memory(runtime.get(), &data, &bytes); });
  return {reinterpret_cast<std::uintptr_t>(data), bytes};
}

nb::dict Runtime::report() {
  const auto runtime = handle_->get("Runtime.report");
  penstock_runtime_report report{.size = sizeof(report)};
  run([&] { return penstock_runtime_get_report(runtime.get(), &report); });
  nb::dict fields;
  fields["host_free"] = report.host_free;
  fields["bytes_read"] = report.bytes_read;
  fields["bytes_written"] = report.bytes_written;
  fields["retries"] = report.retries;
  fields["stall_seconds"] = report.stall_seconds;
  return fields;
}

nb::str Runtime::report_text(const std::string& format, double elapsed, const Count& rank) {
  constexpr const char* function = "Runtime.report_text";
  const auto options = report_options(function, format, elapsed, rank);
  const auto runtime = handle_->get(function);
  penstock_lines* texts = nullptr;
  run([&] { return penstock_runtime_report_text(runtime.get(), &options, &texts); });
  return to_text(texts);
}

void Runtime::save_report(const FilePath& file, const std::optional<std::string>& format, double elapsed,
                          const Count& rank) {
  constexpr const char* function = "Runtime.save_report";
  const std::string name = file.get(function, "file");
  const auto options = report_options(function, report_format(format, name), elapsed, rank);
  const auto runtime = handle_->get(function);
  run([&] { return penstock_runtime_save_report(runtime.get(), &options, name.c_str()); });
}

nb::list Runtime::notes() {
  return lines(*this, "Runtime.notes", [](penstock_runtime* runtime, penstock_lines** texts) {
    return penstock_runtime_notes(runtime, texts);
  });
}

nb::list Runtime::take_messages() {
  return lines(*this, "Runtime.take_messages", penstock_runtime_take_messages);
}

void bind_runtime(nb::module_& module) {
  nb::class_<Path>(module, "Path", R"(One directory on one drive.

capacity: most bytes of its swap file, which are reserved. weight: its share of the bytes is weight / (the sum of all).
request_max: most bytes of one request. in_flight_max: most bytes in flight. deadline_seconds: for one request. limit:
bytes a second that were measured, for reports, and where all paths have one, the eviction "planned" evicts copies on
the faster ones first. endurance: bytes that may be written to the drive, for reports. 0: not known.)")
      .def(
          "__init__",
          [](Path* path, const FilePath& directory, const Count& capacity, double weight,
             const Count& request_max, const Count& in_flight_max, std::string engine,
             double deadline_seconds, double limit, const Count& endurance) {
            check_above_zero("Path", "weight", weight);
            check_above_zero("Path", "deadline_seconds", deadline_seconds);
            (void)number_of(engine, io_engines, "Path", "engine");
            new (path) Path{.directory = directory.get("Path", "directory"),
                            .capacity = capacity.get("Path", "capacity", 1),
                            .weight = weight,
                            .request_max = request_max.get("Path", "request_max", 1),
                            .in_flight_max = in_flight_max.get("Path", "in_flight_max", 1),
                            .engine = std::move(engine),
                            .deadline_seconds = deadline_seconds,
                            .limit = limit,
                            .endurance = endurance.get("Path", "endurance")};
          },
          nb::arg("directory"), nb::arg("capacity"), nb::kw_only(), nb::arg("weight") = 1.0,
          nb::arg("request_max") = 4 << 20, nb::arg("in_flight_max") = 16 << 20,
          nb::arg("engine") = "automatic", nb::arg("deadline_seconds") = 60.0, nb::arg("limit") = 0.0,
          nb::arg("endurance") = 0)
      .def_ro("directory", &Path::directory)
      .def_ro("capacity", &Path::capacity)
      .def("__getstate__",
           [](const Path& path) {
             return PathState{path.directory,        path.capacity,      path.weight,
                              path.request_max,      path.in_flight_max, path.engine,
                              path.deadline_seconds, path.limit,         path.endurance};
           })
      .def("__setstate__", [](Path& path, const PathState& state) {
        std::apply([&](const auto&... members) { new (&path) Path{members...}; }, state);
      });

  nb::class_<Runtime>(module, "Runtime",
                      R"(Keeps tensors, which are named bytes, in host memory under a budget and in swap
files, and moves them between the two. Every block that is read back is verified. Any thread may call it.

host_budget: bytes of host memory, allocated by the call. paths: of the swap files; a tensor that is no in_memory needs one. pinning: "none",
"preferred" or "required": whether the kernel may swap the memory out. eviction: "planned", the tensor whose next use is
furthest away, as the round before tells, "lru", or "reuse_distance": as "lru", and after its use a tensor leaves, unless it
is used again in the same round before reuse_distance_max bytes of other uses, as in DeepSpeed. lookahead: most bytes that
are loaded before their use is asked for; 0: none. timeline_file: gets what is moved and waited for, and when, in the format of
Chrome's traces, which Perfetto opens.)")
      .def(nb::init<const Count&, const std::vector<Path>&, const std::string&, const std::string&,
                    const Count&, const Count&, const std::optional<FilePath>&>(),
           nb::arg("host_budget"), nb::arg("paths") = nb::list(), nb::kw_only(), nb::arg("pinning") = "none",
           nb::arg("eviction") = "planned", nb::arg("lookahead") = 64 << 20,
           nb::arg("reuse_distance_max") = 0, nb::arg("timeline_file").none() = nb::none())
      .def("add", &add, nb::arg("name"), nb::arg("nbytes"), nb::kw_only(), nb::arg("in_memory") = false,
           nb::arg("write_behind") = false, nb::arg("home_in_memory") = false,
           R"(Adds a tensor, which has no contents. name: for messages. in_memory: it keeps a range of
host memory, and has no place on disk. write_behind: it is stored as soon as a lease that changes it ends. home_in_memory:
it has a place on disk, and is evicted only when nothing else makes room for a lease; with write_behind it is stored only
then, or by a flush.

Raises InvalidArgument for in_memory together with home_in_memory, NoSpace when no path has room, BudgetTooSmall when
host memory has none.)")
      .def("end_round", &Runtime::end_round,
           "Ends a round of uses, such as a training step. Its order predicts that of the next round.")
      .def("flush", &Runtime::flush,
           "Waits until every changed tensor that is written behind is on disk. Raises the first store's "
           "error.")
      .def("sync", &Runtime::sync, "The same, and makes the bytes durable.")
      .def(
          "park", &Runtime::park,
          R"(Stores what is only in memory, and gives the memory to the operating system, so that another program
can use it. Returns the bytes; take_messages() says why they are fewer than the budget. Until unpark(), lease() raises
FailedState.

Raises, and changes nothing: FailedState, when it is parked or its memory is limited; Unsupported, for a tensor that is in_memory; BudgetTooSmall,
naming the tensors that are leased; errors of the disk.)")
      .def(
          "unpark", &Runtime::unpark,
          "Takes the memory again; tensors are loaded when they are used. Raises FailedState, when it is not "
          "parked; NoSpace, after which it can be called again.")
      .def(
          "limit_memory", &Runtime::limit_memory, nb::arg("most"),
          R"(From now on tensors use the first `most` bytes of the memory, as soon as they can: copies beyond leave, and
the operating system gets whole pages of 2 MiB, so that another program can use them. Returns the bytes that it has not
got: what is leased or not stored yet is given back by a later call. Tensors with home_in_memory lose their home, the last
added first, as far as the limit needs it. More than the budget stands for all of it; raising the limit takes the memory
again.

Raises, and changes nothing: BudgetTooSmall, below memory_least(); Unsupported, for memory of the machine's pool of huge
pages; NoSpace, where the machine has no memory to take; FailedState, when it is parked.)")
      .def("memory_least", &Runtime::memory_least,
           "The least that limit_memory() takes now: up to where tensors that are in_memory end, and the "
           "largest other one.")
      .def("begin_trace", &Runtime::begin_trace,
           "Begins to record the leases that are asked for. What was recorded before is forgotten.")
      .def(
          "save_trace", &Runtime::save_trace, nb::arg("file"), nb::arg("label") = "",
          R"(Ends the recording and replaces the file by it, in the format of docs/policies.md. label: of the round, such
as "train". Control characters of names are shown by their numbers, and a tensor without a name has its key.

Raises FailedState, if none has begun; InvalidArgument, for a label with a control character, after which the recording
goes on. Of the file, which is as before: InvalidArgument, for a directory, a device, a pipe or a socket, and other errors
of files; a repeated call saves what was recorded until the first one, with its label.)")
      .def(
          "predict_trace", &Runtime::predict_trace, nb::arg("file"),
          R"(Predicts that the round that begins now, and the next ones, have the uses of the file: from the first use
on, what is used next is loaded ahead, and what is used last is evicted. Its tensors are found by name and size; of several
with both, in the order in which they were added.

Raises, and the prediction is as before: NotFound and other errors of the file; InvalidArgument, for one that is no trace,
with the line, and for one of another model: a tensor that the runtime does not have, or of another size.)")
      .def("host_memory", &Runtime::host_memory,
           "Address and bytes of the memory in which tensors are leased, to be registered with a device.")
      .def("report", &Runtime::report,
           "Bytes of the budget that no tensor has, bytes read and written so far, repeated requests, "
           "seconds of waits.")
      .def("report_text", &Runtime::report_text, nb::arg("format") = "text", nb::kw_only(),
           nb::arg("elapsed") = 0.0, nb::arg("rank") = 0,
           "What the tensors have taken and moved so far, by tier, purpose and drive. format: \"text\", "
           "\"json\", or \"prometheus\" for its text format. elapsed: seconds of the run, for rates. rank: "
           "of this process, which metrics have as a label.")
      .def("save_report", &Runtime::save_report, nb::arg("file"), nb::arg("format") = nb::none(),
           nb::kw_only(), nb::arg("elapsed") = 0.0, nb::arg("rank") = 0,
           "Replaces a file by such a report at once, so that another program reads a whole one. Without a "
           "format its extension decides: \".json\", \".prom\" for Prometheus, or else text.")
      .def_prop_ro("notes", &Runtime::notes, "Options that are not in effect, with reasons.")
      .def("take_messages", &Runtime::take_messages,
           "What has happened since the last call and was no error, such as stores that moved to another "
           "path.")
      .def("close", &Runtime::close,
           "Waits for the transfers in flight and frees the memory once all leases have ended.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Runtime"))
      .def("__exit__", [](Runtime& runtime, nb::args) { runtime.close(); });
}

}  // namespace penstock::python
