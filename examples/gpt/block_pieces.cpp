#include "gpt/block_pieces.hpp"

#include <penstock/zero/layout/row_blocks.hpp>

namespace gpt {

namespace {

using penstock::ElementCount;
using penstock::Result;
using Kind = BlockPiece::Kind;

/// Columns of activations begin at multiples of 128 bytes, as products on a GPU want them.
constexpr std::uint64_t row_multiple = 64;

BlockPiece norm(Kind kind, std::uint32_t width) {
  return {.kind = kind, .outputs = width, .all_outputs = width};
}

BlockPiece layer(Kind kind, std::uint32_t inputs, std::uint32_t outputs) {
  return {.kind = kind, .inputs = inputs, .outputs = outputs, .all_outputs = outputs};
}

const char* name(Kind kind) {
  switch (kind) {
    case Kind::norm1: return "norm1";
    case Kind::qkv: return "qkv.weight";
    case Kind::proj: return "proj.weight";
    case Kind::norm2: return "norm2";
    case Kind::up: return "up.weight";
    case Kind::down: return "down.weight";
  }
  return "unknown";
}

/// A layer's rows within the limit; a norm is not cut.
Result<std::vector<BlockPiece>> cut(const BlockPiece& whole, ElementCount limit) {
  if (whole.inputs == 0) return std::vector<BlockPiece>{whole};
  PENSTOCK_TRY_ASSIGN(const auto blocks, penstock::zero::cut_rows({.name = name(whole.kind),
                                                                   .rows = whole.outputs,
                                                                   .row_elements = whole.inputs + 1,
                                                                   .elements_max = limit,
                                                                   .multiple = row_multiple}));
  std::vector<BlockPiece> pieces;
  for (const penstock::zero::RowBlock& rows : blocks) {
    BlockPiece& piece = pieces.emplace_back(whole);
    piece.first = static_cast<std::uint32_t>(rows.first);
    piece.outputs = static_cast<std::uint32_t>(rows.count);
  }
  return pieces;
}

}  // namespace

Result<std::vector<std::vector<BlockPiece>>> block_pieces(const ModelConfig& config) {
  const std::uint32_t width = config.width;
  const BlockPiece whole[] = {norm(Kind::norm1, width),          layer(Kind::qkv, width, 3 * width),
                              layer(Kind::proj, width, width),   norm(Kind::norm2, width),
                              layer(Kind::up, width, 4 * width), layer(Kind::down, 4 * width, width)};
  const ElementCount limit = config.unit_elements_max;
  ElementCount of_unit;
  std::vector<std::vector<BlockPiece>> units(1);
  for (const BlockPiece& part : whole) {
    PENSTOCK_TRY_ASSIGN(const auto pieces, cut(part, limit));
    for (const BlockPiece& piece : pieces) {
      const bool fits = limit.is_zero() || of_unit + piece.element_count() <= limit;
      if (!fits && !units.back().empty()) {
        units.emplace_back();
        of_unit = {};
      }
      units.back().push_back(piece);
      of_unit += piece.element_count();
    }
  }
  return units;
}

}  // namespace gpt
