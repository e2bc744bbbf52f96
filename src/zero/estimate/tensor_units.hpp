#pragma once

#include "zero/exchange/safetensors_header.hpp"

#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>
#include <span>

namespace penstock::zero::estimate {

/// Divides the tensors of a checkpoint into units, by their names:
/// - a layer is what begins alike up to its first number: `model.layers.17.`, `transformer.h.3.`, `h.3.`. What follows,
///   such as the number of an expert, divides nothing. Layers are in the order of their numbers; several stacks of
///   layers follow each other, encoders first;
/// - the others are one unit before the layers, if they are embeddings, and one after them;
/// - without a matrix for the head, the head uses that of the embedding of tokens.
/// Tensors of at most one dimension are of group 1, without weight decay. Masks, positions and packed integers are no
/// parameters and are left out, with a note.
///
/// Errors: invalid_argument, if no parameter is left.
[[nodiscard]] Result<ModelLayout> units_of_tensors(const std::vector<exchange::TensorEntry>& tensors,
                                                   std::vector<std::string>& notes);

/// Sets the dimensions, if a parameter may have so many, and so long ones if there are two.
void set_shape(ParameterLayout& parameter, std::span<const std::uint64_t> shape);
/// Whether it is a matrix, and by its name neither an embedding nor the head's.
[[nodiscard]] bool is_hidden_matrix(const ParameterLayout& parameter);

}  // namespace penstock::zero::estimate
