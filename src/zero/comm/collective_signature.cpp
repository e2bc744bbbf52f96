#include <penstock/zero/comm/communicator.hpp>

namespace penstock::zero {

std::string to_string(const CollectiveSignature& signature) {
  using Subject = CollectiveSignature::Subject;
  static constexpr std::string_view names[] = {"parameters", "gradients", "gradient norm", "step outcome",
                                               "digest"};
  std::string text(names[static_cast<std::size_t>(signature.subject)]);
  if (signature.subject == Subject::parameters || signature.subject == Subject::gradients) {
    text += " of unit " + std::to_string(signature.unit) + ", optimizer group " +
            std::to_string(signature.group) + ", micro-batch " + std::to_string(signature.micro_batch);
  }
  return text + " of step " + std::to_string(signature.step);
}

}  // namespace penstock::zero
