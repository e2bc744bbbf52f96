#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/cpu_adam/state_format.hpp>
#include <penstock/zero/config/loss_scaler.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace penstock::zero::exchange {

/// What an export with states has beside them, as texts in the metadata of its safetensors files. docs/exchange.md
/// describes them.
struct StatesDescription {
  ModelLayout layout;  ///< its groups have the settings of the run
  cpu_adam::Optimizer optimizer = cpu_adam::Optimizer::adam;
  std::uint64_t completed_steps = 0;
  LossScaler::State loss_scaler;
  std::string commit;  ///< which one of which run it is; empty: not known

  [[nodiscard]] std::map<std::string, std::string> to_metadata() const;
  /// `file` is the file's name, for errors.
  ///
  /// Errors: invalid_argument, naming the key: one that is missing or has no such value; unsupported, for another
  /// version; those of LayoutFile::parse().
  [[nodiscard]] static Result<StatesDescription> from_metadata(
      const std::map<std::string, std::string>& metadata, const std::string& file);
};

/// "layer0.weight": the name of a parameter in the model.
[[nodiscard]] std::string full_name(const ModelLayout& model, ParameterId parameter);
/// "first_moment.layer0.weight".
[[nodiscard]] std::string state_name(cpu_adam::StateKind kind, const std::string& parameter);
/// Whether a run of `optimizer` keeps this state of a parameter of `group`. Of a frozen one, the master is its value.
[[nodiscard]] bool keeps_state(cpu_adam::Optimizer optimizer, const OptimizerGroup& group,
                               cpu_adam::StateKind kind);

/// The parameters of a model in the order of their owners.
[[nodiscard]] std::vector<ParameterId> owned_parameters(const ModelLayout& model);

}  // namespace penstock::zero::exchange
