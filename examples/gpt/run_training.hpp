#pragma once

#include "gpt/disk_limit.hpp"
#include "gpt/output_file.hpp"
#include "gpt/rank_group.hpp"
#include "gpt/state_file.hpp"
#include "gpt/text.hpp"
#include "gpt/trace_report.hpp"
#include "gpt/training_arguments.hpp"
#include "gpt/training_states.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace gpt {

struct RunOptions {
  const TrainingArguments& arguments;
  const RankGroup& group;
  const penstock::zero::Config& config;
  const Text& text;
  TrainingStates& states;
  std::uint32_t commit_every = 1;  ///< steps, with penstock.durable_directory
  const DiskLimit* limit = nullptr;
  /// What the process of rank 0 writes beside its report; null: it does not. `uses`: the trace of rank 0's second step.
  TraceReport* trace = nullptr;
  const OutputFile* json = nullptr;
  const OutputFile* uses = nullptr;
};

/// The result of a training run.
struct Run {
  std::string digest;
  std::optional<penstock::Error> error;
  int signal = 0;  ///< ended it after a step
  StateFile::Progress progress;
};

/// Trains the ranks of this process, each on a thread. The process of rank 0 prints the report to standard output.
[[nodiscard]] Run run_training(const RunOptions& options);

}  // namespace gpt
