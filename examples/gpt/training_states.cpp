#include "gpt/training_states.hpp"

#include <string>

namespace gpt {

using penstock::Error;
using penstock::Result;

namespace {

constexpr const char* operation = "TrainingStates::open";

Result<void> check(const TrainingStates::Paths& paths, const ModelConfig& model) {
  if (model.lora && !paths.base) {
    return Error::invalid_argument(operation)
        .object("--lora")
        .reason("adapters are trained beside a model that is trained already")
        .wanted("--base FILE")
        .got("no --base")
        .advice("train a base with gpt_train --save FILE");
  }
  if (!paths.base || !paths.resume || model.lora) return penstock::ok();
  return Error::invalid_argument(operation)
      .object("--base")
      .reason("the file of --resume has all parameters")
      .wanted("--base or --resume")
      .got("both")
      .advice("leave --base out, or give --lora");
}

}  // namespace

Result<TrainingStates> TrainingStates::open(const Paths& paths, const ModelConfig& model,
                                            const TrainingConfig& training) {
  PENSTOCK_TRY(check(paths, model));
  TrainingStates states;
  if (paths.base) {
    ModelConfig base = model;
    base.lora.reset();
    PENSTOCK_TRY_ASSIGN(states.base, StateFile::open(*paths.base, base));
  }
  if (paths.resume) {
    PENSTOCK_TRY_ASSIGN(states.resumed, StateFile::open(*paths.resume, model));
    if (const std::uint64_t steps = states.resumed->progress().steps; steps >= training.steps) {
      return Error::invalid_argument(operation)
          .object("--steps")
          .reason("it counts the steps before --resume too")
          .wanted("above " + std::to_string(steps))
          .got(training.steps);
    }
  }
  if (paths.save) {
    PENSTOCK_TRY_ASSIGN(states.saved, StateFile::create(*paths.save, model));
  }
  return states;
}

}  // namespace gpt
