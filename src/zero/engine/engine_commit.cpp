// The calls of the engine that make a run durable and continue it: commit, resume.

#include "base/notes.hpp"
#include "zero/engine/engine_state.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

namespace penstock::zero {

namespace {

/// Whether settings of groups that were committed can be those of this layout.
bool fit(const std::vector<OptimizerGroup>& committed, const std::vector<OptimizerGroup>& layout) {
  return std::equal(committed.begin(), committed.end(), layout.begin(), layout.end(),
                    [](const OptimizerGroup& a, const OptimizerGroup& b) {
                      return a.frozen == b.frozen && a.use_muon == b.use_muon;
                    });
}

}  // namespace

Result<void> EngineState::check_durable(const char* operation) const {
  if (commits_) return ok();
  return Error(ErrorCode::failed_state, operation)
      .reason("the run has no durable directory")
      .advice("set penstock.durable_directory");
}

/// Errors: failed_state, if values were set beside a commit that a later one would replace.
Result<void> EngineState::check_new_run(const char* operation) const {
  if (!commits_ || !commits_->last()) return ok();
  return Error(ErrorCode::failed_state, operation)
      .reason("the durable directory has a run, which the next commit would replace")
      .object(options_.config.penstock.durable_directories.front().string())
      .got("generation " + std::to_string(commits_->last()->generation))
      .advice("resume from it, or name another durable directory");
}

Result<void> EngineState::check_no_commit(const char* operation) const {
  if (!commits_ || !commits_->in_progress()) return ok();
  return Error(ErrorCode::failed_state, operation)
      .reason("a commit is in progress")
      .advice("call finish_commit() first");
}

Result<void> EngineState::check_commit(const char* operation, std::span<const std::byte> client) const {
  PENSTOCK_TRY(check_durable(operation));
  PENSTOCK_TRY(ready(operation));
  PENSTOCK_TRY(check_here(operation, ParkKinds::all));
  PENSTOCK_TRY(between_steps(operation));
  PENSTOCK_TRY(check_no_commit(operation));
  if (constexpr ByteCount most = 1_GiB; ConstHostSpan(client).size() > most) {
    return Error::invalid_argument(operation)
        .object("client")
        .wanted("at most " + to_exact_string(most))
        .got(ConstHostSpan(client).size())
        .advice("write such an amount to a file of its own, and commit its name");
  }
  return ok();
}

Manifest EngineState::manifest(std::span<const std::byte> client) const {
  return {.model = options_.model,
          .dtype = options_.config.dtype,
          .format = options_.config.penstock.state_format,
          .optimizer = options_.config.optimizer.type,
          .completed_steps = context_.completed_steps,
          .skipped_steps = skipped_steps_,
          .loss_scaler = step_.loss_scaler().state(),
          .groups = step_.groups(),
          .client = {client.begin(), client.end()}};
}

Result<CommitReport> EngineState::commit(std::span<const std::byte> client) {
  PENSTOCK_TRY(check_commit("Engine::commit", client));
  wear_.note_other_writes();
  commits_->begin(manifest(client));
  auto committed = end_commit();
  if (!committed) commits_->give_up();
  return committed;
}

Result<void> EngineState::begin_commit(std::span<const std::byte> client) {
  PENSTOCK_TRY(check_commit("Engine::begin_commit", client));
  wear_.note_other_writes();
  commits_->begin(manifest(client));
  start_commit();
  return ok();
}

Result<CommitReport> EngineState::finish_commit() {
  constexpr const char* operation = "Engine::finish_commit";
  PENSTOCK_TRY(check_durable(operation));
  PENSTOCK_TRY(ready(operation));
  PENSTOCK_TRY(between_steps(operation));
  if (!commits_->in_progress()) {
    return Error(ErrorCode::failed_state, operation)
        .reason("no commit is in progress")
        .advice("call begin_commit() first; commit() needs no finish_commit()");
  }
  return end_commit();
}

/// Peers wait in the commit: it fails with the error of this rank's update, unless a gather waits for that update,
/// whose collective is before those of the commit.
Result<CommitReport> EngineState::end_commit() {
  Result<void> updated = ok();
  if (commits_->waits_for_update()) {
    updated = context_.finish_update();
    if (context_.failure) {
      commits_->give_up();
      return *context_.failure;
    }
    if (updated) commits_->start();
  }
  PENSTOCK_TRY(finish_moves(updated));
  commits_->start(updated);
  commits_->complete();
  if (context_.failure) return *context_.failure;
  if (context_.interruption) return *context_.interruption;
  return commits_->take_outcome();
}

/// Starts a commit that waits for the update, if that is complete.
void EngineState::start_commit() {
  if (!commits_ || !commits_->waits_for_update()) return;
  bool is_updated = false;
  context_.internals.wait_ignoring_stores([&] {
    is_updated = context_.update.done && !context_.update.error && !context_.update_stopped;
    return true;
  });
  if (is_updated) commits_->start();
}

Result<std::optional<Resumed>> EngineState::resume() {
  constexpr const char* operation = "Engine::resume";
  PENSTOCK_TRY(check_durable(operation));
  PENSTOCK_TRY(check_restorable(operation));
  PENSTOCK_TRY(finish_moves());
  if (!commits_->last()) return std::optional<Resumed>();
  Resumed resumed{.notes = commits_->notes()};
  PENSTOCK_TRY(restore_commit(operation, commits_->where(), *commits_->last(), resumed));
  return std::optional(std::move(resumed));
}

/// Collective; all ranks get an error, or none.
Result<void> EngineState::restore_commit(const char* operation, const RankDirectory::Options& where,
                                         const FoundManifest& commit, Resumed& resumed) {
  // The collective has the same step on ranks that could restore theirs and on others.
  const std::uint64_t before = context_.completed_steps;
  auto restored = restore_own(operation, where, commit, resumed);
  if (context_.failure) return restored ? *context_.failure : restored.error();
  const std::uint64_t step = std::exchange(context_.completed_steps, before);
  if (auto agreed = agree_on_outcome(context_, operation, restored ? ok() : Result<void>(restored.error()));
      !agreed) {
    step_.reset_loss_scale();
    initialized_ = false;
    return agreed;
  }
  Manifest& manifest = *restored;
  context_.completed_steps = step;
  skipped_steps_ = manifest.skipped_steps;
  if (fit(manifest.groups, options_.model.groups)) {
    step_.set_groups(manifest.groups);
    if (manifest.model.groups != options_.model.groups)
      resumed.notes.emplace_back(
          "the layout has other settings of optimizer groups than that of the run that committed: the run's "
          "are "
          "used, see Engine::set_groups()");
  } else {
    resumed.notes.emplace_back(
        "the layout has other optimizer groups than the run that committed: they have "
        "the settings of the layout");
  }
  resumed.generation = manifest.generation;
  resumed.step = manifest.completed_steps;
  resumed.ranks = manifest.ranks;
  resumed.client = std::move(manifest.client);
  return ok();
}

/// Sets what restore() sets, and the loss scale.
Result<Manifest> EngineState::restore_own(const char* operation, const RankDirectory::Options& where,
                                          const FoundManifest& commit, Resumed& resumed) {
  const std::uint32_t engine = options_.engine_number;
  PENSTOCK_TRY_ASSIGN(Manifest manifest, manifest_of(where, engine, commit));
  PENSTOCK_TRY_ASSIGN(CommittedStates states, states_of(context_, where, engine, commit, manifest));
  std::optional<Error> wrong;
  // The run went on with such values, and has no other commit.
  const auto note = [&](Error error, float value) -> Result<void> {
    const bool goes_on = std::isfinite(value) || !options_.config.skips_non_finite_gradients();
    if (manifest.dtype != options_.config.dtype || !goes_on) return error;
    if (!wrong) wrong = std::move(error);
    return ok();
  };
  PENSTOCK_TRY(restore(
      operation, manifest.completed_steps,
      [&states](ParameterId parameter, cpu_adam::StateKind kind, std::uint64_t first,
                std::span<float> values) { return states.read(parameter, kind, first, values); },
      note));
  if (wrong)
    resumed.notes.push_back("a value that is not finite in the parameters' type was committed: " +
                            first_line(*wrong));
  if (step_.loss_scaler().is_dynamic()) PENSTOCK_TRY(step_.loss_scaler().restore(manifest.loss_scaler));
  resumed.notes.insert(resumed.notes.end(), states.notes().begin(), states.notes().end());
  return manifest;
}

}  // namespace penstock::zero
