#include <penstock/zero/comm/communicator.hpp>

namespace penstock::zero {

std::string to_string(const CollectiveSignature& signature) {
  using Subject = CollectiveSignature::Subject;
  const auto name = [&signature]() -> std::string_view {
    switch (signature.subject) {
      case Subject::parameters: return "parameters";
      case Subject::gradients: return "gradients";
      case Subject::gradient_norm: return "gradient norm";
      case Subject::step_outcome: return "step outcome";
      case Subject::digest: return "digest";
      case Subject::park: return "park";
      case Subject::commit: return "commit";
      case Subject::checkpoint: return "checkpoint";
    }
    return "unknown";
  };
  std::string text(name());
  if (signature.subject == Subject::parameters || signature.subject == Subject::gradients) {
    text += " of unit " + std::to_string(signature.unit) + ", optimizer group " +
            std::to_string(signature.group) + ", micro-batch " + std::to_string(signature.micro_batch);
  }
  return text + " of step " + std::to_string(signature.step);
}

}  // namespace penstock::zero
