#include "estimate/model_report.hpp"

#include "zero/config/json_text.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace penstock::tool {

namespace {

using zero::estimate::NamedModel;
using zero::estimate::PlanEstimate;

/// Errors: invalid_argument, for a model whose shapes are not known; budget_too_small, of plan_recomputation().
Result<ModelReport::Activations> activations_of(const EstimateOptions& options, const ModelReport& report) {
  constexpr const char* operation = "penstock estimate";
  PENSTOCK_TRY_ASSIGN(const auto* const shape, zero::estimate::find_shape(*options.model, "--tokens"));
  ModelReport::Activations activations{
      .tokens = options.tokens,
      .blocks = shape->layers,
      .sizes = zero::estimate::activations_of(*shape, report.config.dtype, options.tokens)};
  if (!options.memory_device) return activations;
  PENSTOCK_TRY_ASSIGN(const ByteCount memory,
                      parse_size(operation, "--memory-device", *options.memory_device));
  PENSTOCK_TRY_ASSIGN(activations.plan,
                      zero::estimate::plan_recomputation(activations.sizes, shape->layers, memory,
                                                         report.estimate.per_rank(tiers::Tier::device)));
  return activations;
}

/// Sorts the knobs by their seconds; those that cannot run on the machine are the last ones.
Result<ModelReport::Timing> time_report(ModelReport& report, const zero::simulate::TimedRun& run) {
  const zero::ModelLayout& layout = report.model.layout;
  ModelReport::Timing timing;
  PENSTOCK_TRY_ASSIGN(timing.timed, time_changes(report.config, layout, run));
  std::vector<std::pair<double, zero::estimate::Knob>> timed;
  constexpr double never = std::numeric_limits<double>::infinity();
  for (zero::estimate::Knob& knob : report.knobs) {
    const auto other = time_config(knob.config, layout, run);
    timed.emplace_back(other ? other->seconds() : never, std::move(knob));
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  report.knobs.clear();
  for (auto& [seconds, knob] : timed) {
    report.knobs.push_back(std::move(knob));
    timing.of_knobs.push_back(seconds == never ? std::nullopt : std::optional(seconds));
  }
  return timing;
}

/// Everything that is printed.
Result<ModelReport> report_of(const EstimateOptions& options, NamedModel model) {
  ModelReport report{.model = std::move(model)};
  PENSTOCK_TRY_ASSIGN(auto file, config_of(options));
  report.config = std::move(file.config);
  std::optional<zero::simulate::TimedRun> run;
  if (options.machine) {
    PENSTOCK_TRY_ASSIGN(run, timed_run_of(options, report.config, report.model));
  }
  if (report.config.optimizer.type == cpu_adam::Optimizer::muon) PENSTOCK_TRY(report.model.use_muon());
  print_notes(report.model.notes);
  note_kept_states(report.config, run_of(options).device_memory);
  PENSTOCK_TRY_ASSIGN(report.estimate,
                      zero::estimate::estimate_plan(report.config, report.model.layout, run_of(options)));
  PENSTOCK_TRY_ASSIGN(report.deepspeed,
                      zero::estimate::compare_deepspeed(report.config, report.model, run_of(options)));
  // A run can be timed of every model.
  if (options.tokens > 0 && (!run || zero::estimate::find_preset(*options.model) != nullptr)) {
    PENSTOCK_TRY_ASSIGN(report.activations, activations_of(options, report));
  }
  report.knobs = zero::estimate::next_knobs(report.config, report.model.layout, report.estimate);
  if (run) {
    PENSTOCK_TRY_ASSIGN(report.timing, time_report(report, *run));
  }
  if (options.drive_endurance) {
    PENSTOCK_TRY_ASSIGN(const double given, parse_endurance(*options.drive_endurance));
    report.endurance_bytes.assign(report.estimate.paths.size(), given);
    return report;
  }
  const std::vector<ByteCount>& configured = report.config.penstock.path_endurance;
  const bool all_known = std::none_of(configured.begin(), configured.end(), std::mem_fn(&ByteCount::is_zero));
  if (!all_known || configured.size() != report.estimate.paths.size()) return report;
  for (const ByteCount endurance : configured)
    report.endurance_bytes.push_back(static_cast<double>(endurance.value()));
  return report;
}

ExitStatus deepspeed_of(const EstimateOptions& options, const NamedModel& model) {
  zero::DeepSpeedEstimateOptions sizes{.total_params = model.layout.element_count(),
                                       .largest_layer_params = model.largest_module(),
                                       .gpus_per_node = options.gpus_per_node,
                                       .nodes = options.nodes};
  if (const auto taken = take_factor(options.factor, sizes); !taken) return fail(taken.error());
  return print_deepspeed(options, sizes);
}

}  // namespace

ExitStatus estimate_model(const EstimateOptions& options) {
  auto model = NamedModel::load(*options.model);
  if (!model) return fail(model.error());
  if (options.format == "deepspeed") {
    print_notes(model->notes);
    return deepspeed_of(options, *model);
  }
  if (options.stage != 3) return fail(only_stage_3());
  const auto report = report_of(options, std::move(*model));
  if (!report) return fail(report.error());
  options.json ? print_json(to_json(*report)) : print_report(*report);
  return done;
}

}  // namespace penstock::tool
