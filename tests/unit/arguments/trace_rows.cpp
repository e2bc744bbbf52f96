#include "unit/arguments/bad_arguments.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/swap/access_trace.hpp>
#include <penstock/swap/runtime.hpp>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test {
namespace {

using namespace swap;

AccessTrace good_trace() {
  return {.label = "train", .tensors = {{.name = "tensor", .size = 4_KiB}}, .uses = {{0, Access::read}}};
}

/// With what is wrong with each.
std::vector<std::pair<std::string, AccessTrace>> wrong_traces() {
  std::vector<std::pair<std::string, AccessTrace>> traces;
  const auto with = [&](const char* wrong, auto change) {
    traces.emplace_back(wrong, good_trace());
    change(traces.back().second);
  };
  with("label", [](AccessTrace& t) { t.label = "a\nb"; });
  with("name", [](AccessTrace& t) { t.tensors[0].name = "a\rb"; });
  with("name", [](AccessTrace& t) { t.tensors[0].name = ""; });
  with("size", [](AccessTrace& t) { t.tensors[0].size = {}; });
  with("purpose", [](AccessTrace& t) { t.tensors[0].purpose = unknown<tiers::Purpose>; });
  with("tensor", [](AccessTrace& t) { t.uses[0].tensor = 1; });
  with("tensor", [](AccessTrace& t) { t.uses[0].tensor = ~std::uint32_t{0}; });
  with("access", [](AccessTrace& t) { t.uses[0].access = unknown<Access>; });
  return traces;
}

std::unique_ptr<Runtime> new_runtime() {
  auto runtime = Runtime::create({.host_budget = 64_KiB}).value();
  (void)runtime->add({.name = "tensor", .size = 4_KiB}, false).value();
  return runtime;
}

void add_trace_value_rows(BadArguments& bad) {
  for (const auto& [wrong, trace] : wrong_traces()) {
    bad("check_trace", "trace", wrong, [=] { return refused(check_trace(trace), wrong); });
    bad("to_text", "trace", wrong, [=] { return (void)to_text(trace), harmless(); });
    bad("first_difference", "actual", wrong,
        [=] { return (void)first_difference(good_trace(), trace), harmless(); });
    bad("first_difference", "expected", wrong,
        [=] { return (void)first_difference(trace, good_trace()), harmless(); });
    bad("first_kept_elsewhere", "actual", wrong,
        [=] { return (void)first_kept_elsewhere(good_trace(), trace), harmless(); });
    bad("first_kept_elsewhere", "expected", wrong,
        [=] { return (void)first_kept_elsewhere(trace, good_trace()), harmless(); });
    bad("save_trace", "trace", wrong, [=] {
      const ScratchDirectory scratch;
      const auto file = scratch.path() / "trace";
      return all({refused(save_trace(trace, file), wrong), expect(!std::filesystem::exists(file), "a file")});
    });
    bad("Runtime::predict", "trace", wrong, [=] {
      const auto runtime = new_runtime();
      return all({refused(runtime->predict(trace), wrong), fails(runtime->predict(trace)),
                  expect(runtime->predict(good_trace()).has_value(), "a good one is refused now")});
    });
  }
}

void add_trace_runtime_rows(BadArguments& bad) {
  bad("Runtime::predict", "trace", "of another model", [] {
    AccessTrace trace = good_trace();
    trace.tensors[0].name = "layer 7";
    return refused(new_runtime()->predict(trace), "layer 7");
  });
  bad("Runtime::predict", "trace", "of other sizes", [] {
    AccessTrace trace = good_trace();
    trace.tensors[0].size = ByteCount(most);
    return refused(new_runtime()->predict(trace), "tensor");
  });
  bad("Runtime::predict", "trace", "without uses",
      [] { return expect(new_runtime()->predict({}).has_value(), "refused"); });
  bad("Runtime::end_trace", "label", "with a line break", [] {
    const auto runtime = new_runtime();
    runtime->begin_trace();
    return refused(runtime->end_trace("a\nb"), "label");
  });
}

void add_trace_file_rows(BadArguments& bad) {
  for (const std::string& file : {std::string(), std::string("/penstock-none/trace"),
                                  std::string("/dev/full"), std::string("/proc"), std::string(5000, 'x')}) {
    bad("save_trace", "file", file.substr(0, 40), [=] { return fails(save_trace(good_trace(), file)); });
    bad("load_trace", "file", file.substr(0, 40), [=] { return fails(load_trace(file)); });
  }
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("penstock-trace 1\nuse 0 read"), std::string(3, '\0'),
        std::string("penstock-trace 1\ntensor 1 disk scratch"), std::string(1'000'000, ' ')}) {
    bad("parse_trace", "text", text.substr(0, 60), [=] { return refused(parse_trace(text), "line"); });
  }
}

}  // namespace

void add_trace_rows(BadArguments& bad) {
  add_trace_value_rows(bad);
  add_trace_runtime_rows(bad);
  add_trace_file_rows(bad);
}

}  // namespace penstock::test
