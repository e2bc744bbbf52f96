#include "zero/config/scheduler_rules.hpp"

#include "zero/config/scheduled.hpp"
#include "zero/config/schema_parts.hpp"

#include <algorithm>
#include <concepts>
#include <type_traits>

namespace penstock::zero::config {

namespace {

/// Calls `each` with the name, the member of the scheduler and that of the draft, for each parameter of its type.
template <class Each>
void for_each_parameter(WarmupLR& to, SchedulerDraft& from, Each each) {
  each("warmup_min_lr", to.warmup_min_lr, from.warmup_min_lr);
  each("warmup_max_lr", to.warmup_max_lr, from.warmup_max_lr);
  each("warmup_num_steps", to.warmup_num_steps, from.warmup_num_steps);
  each("warmup_type", to.warmup_type, from.warmup_type);
}
template <class Each>
void for_each_parameter(WarmupDecayLR& to, SchedulerDraft& from, Each each) {
  each("total_num_steps", to.total_num_steps, from.total_num_steps);
  each("warmup_min_lr", to.warmup_min_lr, from.warmup_min_lr);
  each("warmup_max_lr", to.warmup_max_lr, from.warmup_max_lr);
  each("warmup_num_steps", to.warmup_num_steps, from.warmup_num_steps);
  each("warmup_type", to.warmup_type, from.warmup_type);
}
template <class Each>
void for_each_parameter(WarmupCosineLR& to, SchedulerDraft& from, Each each) {
  each("total_num_steps", to.total_num_steps, from.total_num_steps);
  each("warmup_min_ratio", to.warmup_min_ratio, from.warmup_min_ratio);
  each("warmup_num_steps", to.warmup_num_steps, from.warmup_num_steps);
  each("cos_min_ratio", to.cos_min_ratio, from.cos_min_ratio);
  each("warmup_type", to.warmup_type, from.warmup_type);
}
template <class Each>
void for_each_parameter(OneCycle& to, SchedulerDraft& from, Each each) {
  each("cycle_min_lr", to.cycle_min_lr, from.cycle_min_lr);
  each("cycle_max_lr", to.cycle_max_lr, from.cycle_max_lr);
  each("decay_lr_rate", to.decay_lr_rate, from.decay_lr_rate);
  each("cycle_first_step_size", to.cycle_first_step_size, from.cycle_first_step_size);
  each("cycle_second_step_size", to.cycle_second_step_size, from.cycle_second_step_size);
  each("cycle_first_stair_count", to.cycle_first_stair_count, from.cycle_first_stair_count);
  each("cycle_second_stair_count", to.cycle_second_stair_count, from.cycle_second_stair_count);
  each("decay_step_size", to.decay_step_size, from.decay_step_size);
  each("cycle_momentum", to.cycle_momentum, from.cycle_momentum);
  each("cycle_min_mom", to.cycle_min_mom, from.cycle_min_mom);
  each("cycle_max_mom", to.cycle_max_mom, from.cycle_max_mom);
  each("decay_mom_rate", to.decay_mom_rate, from.decay_mom_rate);
}
template <class Each>
void for_each_parameter(LRRangeTest& to, SchedulerDraft& from, Each each) {
  each("lr_range_test_min_lr", to.lr_range_test_min_lr, from.lr_range_test_min_lr);
  each("lr_range_test_step_size", to.lr_range_test_step_size, from.lr_range_test_step_size);
  each("lr_range_test_step_rate", to.lr_range_test_step_rate, from.lr_range_test_step_rate);
  each("lr_range_test_staircase", to.lr_range_test_staircase, from.lr_range_test_staircase);
}

constexpr std::string_view params = "scheduler.params";

std::string path_of(std::string_view parameter) {
  return std::string(params).append(".").append(parameter);
}

/// What DeepSpeed's constructors take no default for.
bool is_required(std::string_view parameter) {
  return parameter == "total_num_steps" || parameter == "cycle_min_lr" || parameter == "cycle_max_lr";
}

/// DeepSpeed warns of it too.
template <class Scheduler>
void note_long_warmup(const Scheduler& scheduler, Reader& reader) {
  if constexpr (requires { scheduler.total_num_steps + scheduler.warmup_num_steps; }) {
    if (scheduler.warmup_num_steps <= scheduler.total_num_steps) return;
    reader.note(path_of("warmup_num_steps"), "more than total_num_steps, " +
                                                 std::to_string(scheduler.total_num_steps) +
                                                 ": the warm-up would end after the run");
  }
}

template <class Scheduler>
void apply(Draft& draft, Reader& reader) {
  Scheduler scheduler;
  const std::string type(type_name(SchedulerConfig(scheduler)));
  std::vector<std::string> taken;
  for_each_parameter(scheduler, draft.scheduler, [&](const char* name, auto& member, auto& given) {
    taken.push_back(path_of(name));
    if (!given && is_required(name) && !reader.has_problem(taken.back())) {
      reader.report(taken.back(), type + " needs it; DeepSpeed has no default for it");
    }
    if (!given) return;
    if constexpr (std::same_as<std::decay_t<decltype(member)>, WarmupType>) {
      if (*given == to_string(WarmupType::linear)) member = WarmupType::linear;
    } else {
      member = *given;
    }
  });
  for (const Key& key : scheduler_keys()) {
    const bool is_parameter = key.path.starts_with(path_of("")) && key.field;
    if (!is_parameter || !reader.was_given(key.path)) continue;
    if (std::find(taken.begin(), taken.end(), key.path) != taken.end()) continue;
    std::string names;
    for (const std::string& one : taken)
      names.append(names.empty() ? "" : ", ").append(one.substr(params.size() + 1));
    reader.report(key.path, type + " has no such parameter; it takes " + names);
  }
  note_long_warmup(scheduler, reader);
  draft.config.scheduler = scheduler;
}

}  // namespace

void apply_scheduler(Draft& draft, Reader& reader) {
  const auto& type = draft.scheduler.type;
  if (!type) {
    if (reader.was_given(params) && !reader.has_problem("scheduler.type")) {
      reader.report(params, "wanted scheduler.type too; without a type DeepSpeed ignores the parameters");
    }
    return;
  }
  if (*type == type_name(WarmupLR())) apply<WarmupLR>(draft, reader);
  if (*type == type_name(WarmupDecayLR())) apply<WarmupDecayLR>(draft, reader);
  if (*type == type_name(WarmupCosineLR())) apply<WarmupCosineLR>(draft, reader);
  if (*type == type_name(OneCycle())) apply<OneCycle>(draft, reader);
  if (*type == type_name(LRRangeTest())) apply<LRRangeTest>(draft, reader);

  if (const auto& warmup = draft.scheduler.warmup_type;
      warmup && *warmup != to_string(WarmupType::linear) && *warmup != to_string(WarmupType::log)) {
    reader.note(path_of("warmup_type"), "\"" + *warmup + "\" is not known: \"log\" is used, as in DeepSpeed");
  }
}

SchedulerDraft scheduler_draft_of(const SchedulerConfig& scheduler) {
  SchedulerDraft draft;
  const auto write = [&](auto one) {
    if constexpr (!std::same_as<decltype(one), std::monostate>) {
      draft.type = type_name(scheduler);
      for_each_parameter(one, draft, [&](const char*, auto& member, auto& written) {
        if constexpr (std::same_as<std::decay_t<decltype(member)>, WarmupType>)
          written = to_string(member);
        else
          written = member;
      });
    }
  };
  std::visit(write, scheduler);
  return draft;
}

}  // namespace penstock::zero::config
