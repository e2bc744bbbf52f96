#pragma once

#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>

namespace penstock::zero::estimate {

/// Whether the model has mixtures of experts, of which each token uses some. The names of parameters tell it, as in
/// Hugging Face's files: `layer.experts.7.w1` is of one expert, `layer.experts.w1` with three dimensions a stack of
/// them, of which the first counts them.
[[nodiscard]] bool has_experts(const ModelLayout& model);

/// Elements of the parameters that a token uses which `of_token` experts of each mixture compute; 0: all elements.
[[nodiscard]] ElementCount elements_of_token(const ModelLayout& model, std::uint64_t of_token);

}  // namespace penstock::zero::estimate
