#include "estimate/model_report.hpp"

#include "estimate/timing_report.hpp"
#include "simulate/simulate_report.hpp"

#include <algorithm>

namespace penstock::tool {

namespace {

using tiers::Tier;
using zero::estimate::PlacedBytes;
using zero::estimate::PlanEstimate;
using Link = PlanEstimate::Link;

constexpr Tier all_tiers[] = {Tier::device, Tier::host, Tier::nvme};

std::string_view to_string(Link link) {
  return link == Link::nvme ? "nvme" : "device";
}

void print_head(const ModelReport& report) {
  const zero::Config& config = report.config;
  const auto& run = report.estimate.run;
  const bool by_stage = config.shards_parameters();
  fmt::print("{} ({}): {} parameters in {} units, the largest of {}\n", report.model.name,
             report.model.source, to_string(report.estimate.parameters), report.model.layout.units.size(),
             to_string(largest_unit(report.model.layout)));
  fmt::print("{} x {} ranks, stage {}, {}, {}offload_optimizer {}, state_format {}, {} micro-batch{}\n\n",
             run.nodes, run.ranks_per_node, config.stage, to_string(config.dtype),
             by_stage ? fmt::format("offload_param {}, ", zero::to_string(config.offload_param.device)) : "",
             zero::to_string(config.offload_optimizer.device), to_string(config.penstock.state_format),
             report.estimate.micro_batches, report.estimate.micro_batches == 1 ? "" : "es");
}

void print_bytes(std::string_view tier, const std::string& what, ByteCount first, ByteCount second) {
  fmt::print("{:<8}{:<46}{:>12}{:>12}\n", tier, what, to_string(first), to_string(second));
}

void print_tiers(const PlanEstimate& estimate) {
  fmt::print("{:<8}{:<46}{:>12}{:>12}\n", "tier", "what", "per rank", "per node");
  for (const Tier tier : all_tiers) {
    for (const PlanEstimate::Line& line : estimate.lines) {
      if (line.tier != tier) continue;
      const std::string what =
          line.allocated ? std::string(line.what) : fmt::format("  at most: {}", line.what);
      print_bytes(to_string(tier), what, line.per_rank, line.per_node);
    }
    print_bytes(to_string(tier), "total", estimate.per_rank(tier), estimate.per_node(tier));
  }
  if (estimate.budgets_differ) {
    fmt::print(
        "node_budgets differ: per rank, here and below, is rank {} of a node, which has the least host "
        "memory\n",
        estimate.plan.planned_local_rank);
  }
  if (estimate.run.device_memory == tiers::DeviceMemory::host) {
    fmt::print("the device is the CPU: a node needs {} of memory for both\n",
               to_string(estimate.per_node(Tier::device) + estimate.per_node(Tier::host)));
  }
  fmt::print("bytes per parameter, of all nodes:");
  for (const Tier tier : all_tiers) {
    const auto bytes = static_cast<double>(estimate.per_node(tier).value()) * estimate.run.nodes;
    fmt::print("{} {} {:.2f}", tier == Tier::device ? "" : ",", to_string(tier),
               bytes / static_cast<double>(estimate.parameters.value()));
  }
  fmt::print("\n");
}

void print_traffic(const PlanEstimate& estimate) {
  if (estimate.traffic.empty()) return fmt::print("\na step moves nothing to or from disks and devices\n");
  fmt::print("\na step moves, at most, per node\n{:<8}{:<46}{:>12}{:>12}\n", "link", "what", "in", "out");
  for (const PlanEstimate::Traffic& moved : estimate.traffic) {
    print_bytes(to_string(moved.link), std::string(moved.what), moved.node_in, moved.node_out);
  }
  fmt::print("in: read from a disk, or copied to a device; out: the reverse\n");
}

/// That the trainer keeps on the device, where that is known.
ByteCount activations_of(const ModelReport& report) {
  if (!report.activations) return {};
  const auto& [tokens, blocks, sizes, plan] = *report.activations;
  return plan ? plan->peak : sizes.block * blocks + sizes.head;
}

/// What the engine places, and these.
std::vector<PlacedBytes> placement_of(const PlanEstimate& estimate, ByteCount activations) {
  std::vector<PlacedBytes> kinds = zero::estimate::placement_of(estimate.plan);
  if (!activations.is_zero()) kinds.push_back({"activations, of the trainer", {activations}});
  return kinds;
}

/// What bounds a step, as far as it is known without a machine.
void print_limit(const ModelReport& report) {
  const PlanEstimate& estimate = report.estimate;
  const ByteCount moved = estimate.read_per_node() + estimate.written_per_node();
  const ByteCount copied = estimate.moved(Link::device);
  if (moved.is_zero()) {
    if (!copied.is_zero())
      fmt::print("limiting resource: arithmetic, or the link of each device, which moves {} a step\n",
                 to_string(copied));
    return;
  }
  const double seconds = drive_seconds(report.config, estimate);
  fmt::print("limiting resource, unless arithmetic takes longer: the drives of a node move {} a step{}\n",
             to_string(moved),
             seconds > 0 ? fmt::format(", {:.3g} s at path_limits", seconds)
                         : "; penstock.path_limits or --machine makes that seconds");
}

/// What would move less, and how long its step takes.
void print_knobs(const ModelReport& report) {
  if (report.knobs.empty()) return;
  const bool is_timed = report.timing.has_value();
  fmt::print("\n{:<44}{:>14}{:>14}{:>14}{:>14}{}\n", "next knobs, of a node", "host", "nvme", "moved a step",
             "device a rank", is_timed ? fmt::format("{:>14}", "a step") : "");
  for (std::size_t i = 0; i < report.knobs.size(); ++i) {
    const zero::estimate::Knob& knob = report.knobs[i];
    fmt::print("{:<44}{:>14}{:>14}{:>14}{:>14}", knob.change, to_string(knob.host), to_string(knob.nvme),
               to_string(knob.moved), to_string(knob.device));
    if (is_timed) {
      const auto& seconds = report.timing->of_knobs[i];
      fmt::print("{:>14}", seconds ? time_text(*seconds) : "cannot run");
    }
    fmt::print("\n");
  }
}

void print_activations(const ModelReport& report) {
  if (!report.activations)
    return fmt::print(
        "activations and the trainer's own memory are not counted; --tokens adds activations\n");
  const auto& [tokens, blocks, sizes, plan] = *report.activations;
  fmt::print("\nactivations of {} tokens: each of {} blocks {}, or its input, {}; the head {}\n",
             to_string(ElementCount(tokens)), blocks, to_string(sizes.block), to_string(sizes.checkpoint),
             to_string(sizes.head));
  if (plan) {
    fmt::print(
        "of {} that are left of the device's memory they take {}: the last {} blocks keep theirs, {}\n",
        to_string(plan->room), to_string(plan->peak), plan->kept,
        plan->kept == blocks ? "and no forward is repeated"
                             : fmt::format("the first {} repeat their forward, {:.1f} % more arithmetic",
                                           blocks - plan->kept, 100 * plan->repeated() / 3));
  }
  fmt::print("the trainer's own memory is not counted\n");
}

Json::Value activations_json(const ModelReport::Activations& activations) {
  const auto& [tokens, blocks, sizes, plan] = activations;
  Json::Value json;
  json["tokens"] = Json::UInt64(tokens);
  json["blocks"] = Json::UInt64(blocks);
  json["block_bytes"] = json_number(sizes.block);
  json["checkpoint_bytes"] = json_number(sizes.checkpoint);
  json["head_bytes"] = json_number(sizes.head);
  if (!plan) return json;
  json["kept_blocks"] = Json::UInt64(plan->kept);
  json["room_bytes"] = json_number(plan->room);
  json["peak_bytes"] = json_number(plan->peak);
  json["repeated_forward"] = plan->repeated();
  return json;
}

Json::Value knobs_json(const ModelReport& report) {
  Json::Value rows(Json::arrayValue);
  for (std::size_t i = 0; i < report.knobs.size(); ++i) {
    const zero::estimate::Knob& knob = report.knobs[i];
    Json::Value& row = rows.append(Json::objectValue);
    if (report.timing) {
      const auto& seconds = report.timing->of_knobs[i];
      row["seconds_per_step"] = seconds ? Json::Value(*seconds) : Json::Value();
    }
    row["change"] = knob.change;
    row["host_per_node_bytes"] = json_number(knob.host);
    row["nvme_per_node_bytes"] = json_number(knob.nvme);
    row["device_per_rank_bytes"] = json_number(knob.device);
    row["moved_per_step_per_node_bytes"] = json_number(knob.moved);
  }
  return rows;
}

void print_paths(const ModelReport& report) {
  const PlanEstimate& estimate = report.estimate;
  if (estimate.paths.empty()) return;
  fmt::print("\n{:<20}{:>8}{:>14}{:>16}{:>16}", "path, of a node", "share", "swap files", "read a step",
             "written a step");
  fmt::print("{}\n",
             !report.endurance_bytes.empty() ? fmt::format("{:>32}", "steps to the rated endurance") : "");
  for (std::size_t i = 0; i < estimate.paths.size(); ++i) {
    const PlanEstimate::Path& path = estimate.paths[i];
    fmt::print("{:<20}{:>6.1f} %{:>14}{:>16}{:>16}", path.directory.string(), 100 * path.share,
               to_string(path.swap_bytes), to_string(path.read), to_string(path.written));
    if (!report.endurance_bytes.empty()) {
      const auto steps = zero::estimate::steps_to_endurance(report.endurance_bytes.at(i), path.written);
      fmt::print("{:>32}", steps ? to_string(ElementCount(*steps)) : "nothing is written");
    }
    fmt::print("\n");
  }
  if (!estimate.shares_are_given)
    fmt::print("equal shares are assumed; a run measures its drives, see path_weights\n");
}

void print_locked(const PlanEstimate& estimate) {
  fmt::print("\n");
  if (estimate.pinned.is_zero()) {
    fmt::print("host memory is not pinned\n");
  } else {
    fmt::print("pinned: {} of {}; RLIMIT_MEMLOCK (ulimit -l) must allow that for a process\n",
               to_string(estimate.pinned), estimate.budgets_differ ? "a rank, at most" : "each rank");
  }
  if (estimate.registered.is_zero()) return;
  fmt::print("io_uring registers {} for the user of a node's ranks, if RLIMIT_MEMLOCK allows that too\n",
             to_string(estimate.registered));
}

std::string to_text(zero::WideByteCount bytes) {
  if (bytes > ~std::uint64_t{0}) return zero::to_decimal(bytes) + " B";
  return to_string(ByteCount(static_cast<std::uint64_t>(bytes)));
}

void print_deepspeed_rows(const ModelReport& report) {
  const auto& [stage, row] = report.deepspeed;
  std::string options = fmt::format("offload_optimizer={}", zero::to_string(row.offload_optimizer));
  if (stage == 3) {
    options = fmt::format("offload_param={}, {}, zero_init=1", zero::to_string(row.offload_param), options);
  }
  fmt::print("\nDeepSpeed's estimator for this model, stage {}, {}\n", stage, options);
  fmt::print("  CPU, per node  {:>12}  here {:>12} of host memory and {} of NVMe\n", to_text(row.cpu_bytes),
             to_string(report.estimate.per_node(Tier::host)),
             to_string(report.estimate.per_node(Tier::nvme)));
  fmt::print("  GPU, each      {:>12}  here {:>12}\n", to_text(row.gpu_bytes),
             to_string(report.estimate.per_rank(Tier::device)));
  fmt::print(
      "  it leaves out NVMe, buckets, pools, gathered units beside the largest, accumulated gradients, and\n"
      "  what pinning adds\n");
}

Json::Value lines_of(const PlanEstimate& estimate) {
  Json::Value lines(Json::arrayValue);
  for (const PlanEstimate::Line& line : estimate.lines) {
    Json::Value& row = lines.append(Json::objectValue);
    row["tier"] = json_string(to_string(line.tier));
    row["what"] = json_string(line.what);
    row["allocated"] = line.allocated;
    row["per_rank_bytes"] = json_number(line.per_rank);
    row["per_node_bytes"] = json_number(line.per_node);
  }
  return lines;
}

Json::Value traffic_of(const PlanEstimate& estimate) {
  Json::Value traffic(Json::arrayValue);
  for (const PlanEstimate::Traffic& moved : estimate.traffic) {
    Json::Value& row = traffic.append(Json::objectValue);
    row["link"] = json_string(to_string(moved.link));
    row["what"] = json_string(moved.what);
    row["in_per_rank_bytes"] = json_number(moved.in);
    row["out_per_rank_bytes"] = json_number(moved.out);
    row["in_per_node_bytes"] = json_number(moved.node_in);
    row["out_per_node_bytes"] = json_number(moved.node_out);
  }
  return traffic;
}

Json::Value paths_of(const ModelReport& report) {
  Json::Value paths(Json::arrayValue);
  for (std::size_t i = 0; i < report.estimate.paths.size(); ++i) {
    const PlanEstimate::Path& path = report.estimate.paths[i];
    Json::Value& row = paths.append(Json::objectValue);
    row["directory"] = path.directory.string();
    row["share"] = path.share;
    row["swap_bytes"] = json_number(path.swap_bytes);
    row["read_per_step_bytes"] = json_number(path.read);
    row["written_per_step_bytes"] = json_number(path.written);
    if (report.endurance_bytes.empty()) continue;
    const auto steps = zero::estimate::steps_to_endurance(report.endurance_bytes.at(i), path.written);
    row["steps_to_endurance"] = steps ? Json::Value(Json::UInt64(*steps)) : Json::Value();
  }
  return paths;
}

}  // namespace

ElementCount largest_unit(const zero::ModelLayout& layout) {
  ElementCount largest;
  for (std::uint32_t unit = 0; unit < layout.units.size(); ++unit) {
    ElementCount count;
    for (const zero::ParameterId id : layout.parameters_of(unit)) count += layout.parameter(id).count;
    largest = std::max(largest, count);
  }
  return largest;
}

void print_placement(std::FILE* to, const PlanEstimate& estimate, ByteCount activations) {
  fmt::print(to, "\n{:<30}{:>10}{:>10}{:>10}{:>16}\n", "placement of a rank", "device", "host", "nvme",
             "in all");
  for (const PlacedBytes& kind : placement_of(estimate, activations)) {
    fmt::print(to, "{:<30}", kind.kind);
    for (const Tier tier : all_tiers) fmt::print(to, "{:>8.1f} %", 100 * kind.share(tier));
    fmt::print(to, "{:>16}\n", to_string(kind.total()));
  }
  const zero::MemoryPlan& plan = estimate.plan;
  if (plan.tiles > 0) {
    fmt::print(to, "tiles of {} elements", to_string(plan.tile_elements));
    if (!plan.update.streamed.is_zero())
      fmt::print(to, ", {} on their way through the device", plan.update.device_slots);
    if (plan.update.by_cpu) fmt::print(to, ", one at a time updated by the CPU");
    if (plan.tiles_on_disk) fmt::print(to, ", at most {} read ahead", plan.tiles_ahead);
    fmt::print(to, "\n");
  }
  if (plan.checkpoints.count > 0)
    fmt::print(to, "checkpoints of {}: {} of {} have a slot on the device\n",
               to_string(plan.checkpoints.size), plan.checkpoints.device_slots, plan.checkpoints.count);
}

void add_placement(Json::Value& json, const PlanEstimate& estimate, ByteCount activations) {
  Json::Value& rows = json["placement"] = Json::arrayValue;
  for (const PlacedBytes& kind : placement_of(estimate, activations)) {
    Json::Value& row = rows.append(Json::objectValue);
    row["kind"] = json_string(kind.kind);
    row["per_rank_bytes"] = json_number(kind.total());
    for (const Tier tier : all_tiers) row[std::string(to_string(tier))] = kind.share(tier);
  }
  const zero::MemoryPlan& plan = estimate.plan;
  json["update"]["tile_elements"] = Json::UInt64(plan.tile_elements.value());
  json["update"]["by_cpu"] = plan.update.by_cpu;
  json["update"]["tiles_through_device"] = plan.update.streamed.is_zero() ? 0u : plan.update.device_slots;
  json["update"]["tiles_ahead"] = plan.tiles_ahead;
}

void print_report(const ModelReport& report) {
  print_head(report);
  print_tiers(report.estimate);
  print_placement(stdout, report.estimate, activations_of(report));
  print_traffic(report.estimate);
  if (report.timing)
    print_timing(stdout, report.timing->timed);
  else
    print_limit(report);
  print_knobs(report);
  print_paths(report);
  print_locked(report.estimate);
  print_deepspeed_rows(report);
  print_activations(report);
}

Json::Value to_json(const ModelReport& report) {
  const PlanEstimate& estimate = report.estimate;
  Json::Value json;
  json["model"] = report.model.name;
  json["source"] = report.model.source;
  json["parameters"] = Json::UInt64(estimate.parameters.value());
  json["units"] = Json::UInt64(report.model.layout.units.size());
  json["largest_unit"] = Json::UInt64(largest_unit(report.model.layout).value());
  json["ranks_per_node"] = estimate.run.ranks_per_node;
  json["nodes"] = estimate.run.nodes;
  json["local_rank"] = estimate.plan.planned_local_rank;
  json["lines"] = lines_of(estimate);
  if (report.activations) json["activations"] = activations_json(*report.activations);
  for (const Tier tier : all_tiers) {
    const std::string name(to_string(tier));
    json["per_rank_bytes"][name] = json_number(estimate.per_rank(tier));
    json["per_node_bytes"][name] = json_number(estimate.per_node(tier));
  }
  json["minimum_bytes"]["host_per_node"] =
      json_number(estimate.plan.host_minimum * estimate.run.ranks_per_node);
  json["minimum_bytes"]["device_per_rank"] = json_number(estimate.plan.device_minimum);
  add_placement(json, estimate, activations_of(report));
  json["traffic_per_step"] = traffic_of(estimate);
  const double of_drives = drive_seconds(report.config, estimate);
  json["drive_seconds_per_step"] = of_drives > 0 ? Json::Value(of_drives) : Json::Value();
  json["knobs"] = knobs_json(report);
  if (report.timing) json["timing"] = timing_json(report.timing->timed);
  json["nvme_read_per_step_per_node_bytes"] = json_number(estimate.read_per_node());
  json["nvme_written_per_step_per_node_bytes"] = json_number(estimate.written_per_node());
  json["paths"] = paths_of(report);
  json["pinned_per_rank_bytes"] = json_number(estimate.pinned);
  json["registered_per_node_bytes"] = json_number(estimate.registered);
  const auto& [stage, row] = report.deepspeed;
  json["deepspeed"]["stage"] = stage;
  json["deepspeed"]["offload_param"] = json_string(zero::to_string(row.offload_param));
  json["deepspeed"]["offload_optimizer"] = json_string(zero::to_string(row.offload_optimizer));
  json["deepspeed"]["cpu_per_node_bytes"] = json_number(row.cpu_bytes);
  json["deepspeed"]["gpu_bytes"] = json_number(row.gpu_bytes);
  return json;
}

}  // namespace penstock::tool
