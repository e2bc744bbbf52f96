#pragma once

#include "count.hpp"
#include "file_path.hpp"
#include "handle.hpp"

#include <penstock/penstock.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

/// penstock.Path.
struct Path {
  std::filesystem::path directory;
  std::uint64_t capacity;
  double weight;
  std::uint64_t request_max, in_flight_max;
  std::string engine;
  double deadline_seconds;
  double limit;
  std::uint64_t endurance;
};

/// penstock.Runtime.
class Runtime {
 public:
  using Owner = Handle<penstock_runtime, penstock_runtime_free>;

  Runtime(const Count& host_budget, const std::vector<Path>& paths, const std::string& pinning,
          const std::string& eviction, const Count& lookahead, const Count& reuse_distance_max,
          const std::optional<FilePath>& timeline_file);

  void end_round() { call("Runtime.end_round", penstock_runtime_end_round); }
  void flush() { call("Runtime.flush", penstock_runtime_flush); }
  void sync() { call("Runtime.sync", penstock_runtime_sync); }
  std::uint64_t park();
  void unpark() { call("Runtime.unpark", penstock_runtime_unpark); }
  std::uint64_t limit_memory(const Count& most);
  [[nodiscard]] std::uint64_t memory_least();
  void begin_trace() { call("Runtime.begin_trace", penstock_runtime_begin_trace); }
  void save_trace(const FilePath& file, const std::string& label);
  void predict_trace(const FilePath& file);
  /// Address and bytes.
  [[nodiscard]] std::pair<std::uintptr_t, std::uint64_t> host_memory();
  [[nodiscard]] nb::dict report();
  [[nodiscard]] nb::str report_text(const std::string& format, double elapsed, const Count& rank);
  void save_report(const FilePath& file, const std::optional<std::string>& format, double elapsed,
                   const Count& rank);
  [[nodiscard]] nb::list notes();
  [[nodiscard]] nb::list take_messages();
  void close() {
    handle_->check_process("Runtime.close");
    handle_->close();
  }
  [[nodiscard]] std::shared_ptr<Owner> handle() const { return handle_; }

 private:
  void call(const char* function, penstock_error* (*called)(penstock_runtime*)) {
    const auto runtime = handle_->get(function);
    run([&] { return called(runtime.get()); });
  }

  std::shared_ptr<Owner> handle_;
};

}  // namespace penstock::python
