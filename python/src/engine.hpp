#pragma once

#include "file_path.hpp"
#include "handle.hpp"
#include "tile.hpp"

#include <penstock/penstock.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

// What penstock.torch.shard is made of. Each class is one object of the C interface.
namespace penstock::python {

class Config {
 public:
  Config(const std::string& text, const std::string& name, std::uint32_t world_size);
  [[nodiscard]] std::string json() const;
  [[nodiscard]] nb::list notes() const;
  [[nodiscard]] std::shared_ptr<penstock_config> get(const char* function) const {
    return handle_.get(function);
  }

 private:
  Handle<penstock_config, penstock_config_free> handle_;
};

class Layout {
 public:
  Layout();
  std::uint32_t add_unit(const std::string& name);
  void add_parameter(std::uint32_t unit, const std::string& name, const std::vector<std::uint64_t>& shape,
                     std::uint32_t group);
  std::uint32_t add_group(bool frozen, std::optional<double> learning_rate_factor,
                          std::optional<double> weight_decay);
  [[nodiscard]] std::shared_ptr<penstock_layout> get(const char* function) const {
    return handle_.get(function);
  }
  [[nodiscard]] const std::vector<std::vector<std::uint64_t>>& elements() const { return elements_; }

 private:
  Handle<penstock_layout, penstock_layout_free> handle_;
  std::vector<std::vector<std::uint64_t>> elements_;  // of each unit's parameters
};

class ProcessGroup {
 public:
  ProcessGroup();
  [[nodiscard]] ProcessGroup split(std::uint32_t color) const;
  [[nodiscard]] std::uint32_t rank() const { return identity_.rank; }
  [[nodiscard]] std::uint32_t ranks() const { return identity_.ranks; }
  [[nodiscard]] std::uint32_t local_rank() const { return identity_.local_rank; }
  [[nodiscard]] nb::list gather(const std::string& label, nb::bytes mine) const;
  [[nodiscard]] std::shared_ptr<penstock_process_group> get(const char* function) const {
    return handle_.get(function);
  }

 private:
  explicit ProcessGroup(penstock_process_group* made);

  Handle<penstock_process_group, penstock_process_group_free> handle_;
  penstock_rank_identity identity_{.size = sizeof(identity_)};
};

class Engine {
 public:
  using Address = std::uintptr_t;
  using Source = std::tuple<Address, std::uint64_t, std::string>;  // elements, dtype

  Engine(const Config& config, const Layout& layout, const ProcessGroup* group);

  void initialize(const std::vector<std::vector<Source>>& values);
  void begin_step(std::optional<std::uint32_t> micro_batches, std::optional<double> learning_rate);
  void gather(std::uint32_t unit, const std::vector<Address>& into);
  void reduce(std::uint32_t unit, const std::vector<Source>& gradients);
  [[nodiscard]] nb::dict step();
  void finish_update();
  void abandon_step(const std::string& cause);
  [[nodiscard]] nb::dict report() const;
  [[nodiscard]] nb::str report_text(const std::string& format, bool with_changes) const;
  void save_report(const FilePath& file, const std::optional<std::string>& format, bool with_changes) const;
  void write_events(const std::vector<std::tuple<std::string, double, std::uint64_t>>& events);
  [[nodiscard]] nb::list take_messages();
  [[nodiscard]] nb::list notes() const;
  std::uint64_t limit_memory(const Count& most);
  [[nodiscard]] std::uint64_t memory_least() const;
  void begin_trace();
  void save_trace(const FilePath& file, const std::string& label);
  [[nodiscard]] std::string digest() const;
  void commit(nb::bytes client);
  [[nodiscard]] std::string save_checkpoint(const std::string& directory, nb::bytes client,
                                            const Count& keep);
  [[nodiscard]] nb::object resume();
  [[nodiscard]] nb::object load_checkpoint(const std::string& directory);
  void close();

 private:
  [[nodiscard]] static std::vector<penstock_source> sources_of(const std::vector<Source>& given,
                                                               const char* function);
  [[nodiscard]] static nb::object of_resumed(penstock_resumed* resumed);

  std::shared_ptr<penstock_process_group> group_;  // outlives the engine
  Handle<penstock_engine, penstock_engine_free> engine_;
  Handle<penstock_stream, penstock_stream_free> stream_;  // ends first
  std::vector<std::vector<std::uint64_t>> elements_;      // of each unit's parameters
};

}  // namespace penstock::python
