#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>

#include <cstdint>

namespace gpt {

using penstock::DeviceSpan;
using penstock::DeviceTensor;
using penstock::StreamHandle;

/// What a backward operation does with the gradient that is already there.
enum class GradientWrite : std::uint8_t {
  overwrite,   ///< gradient = round(new)
  accumulate,  ///< gradient = round(old + new), the sum in fp32
};

/// Where a gradient goes: bf16 or fp32, of the element count of what it is the gradient of. Empty, if the parameter is
/// frozen: its gradient is left out.
struct Gradient {
  DeviceTensor tensor;
  GradientWrite write = GradientWrite::overwrite;
};

/// A layer y[rows, columns] = scale · x[rows, inputs] · w[columns, inputs]ᵀ, or one block of it: rows
/// [first, first + outputs) of w and of the bias, and these columns of y. An operation on a block is given w and the
/// bias of the block, and all columns of y and of its gradient.
struct MatmulSize {
  std::uint32_t rows, inputs, outputs;
  std::uint32_t first = 0, columns = outputs;
  float scale = 1;  ///< of all products below, but not of a bias and its gradient

  [[nodiscard]] bool is_whole() const { return outputs == columns; }
};

/// Rows of `columns` elements each.
struct RowsSize {
  std::uint32_t rows, columns;
};

/// `sequences` sequences of `context` tokens; width = heads × size of a head.
struct AttentionSize {
  std::uint32_t sequences, context, heads, width;
};

/// tokens[rows] with rows = sequences × context; embedding[vocabulary, width], positions[context, width].
struct EmbeddingSize {
  std::uint32_t sequences, context, width, vocabulary;
};

/// The shapes that an Ops computes.
struct OpsLimits {
  std::uint32_t head_width_max;       ///< of attention
  std::uint32_t head_width_multiple;  ///< a head's width is a multiple of it
  std::uint32_t rank_multiple;        ///< an adapter's rank is
};

/// The arithmetic of a GPT, on the memory of one kind of device: the example's own compute interface.
///
/// Matrices are row-major and dense. `w`, `b`, `gain` and the embeddings are parameters, of a dtype for which
/// supports() is true. Activations that are operands of matrix products have operand_dtype(), bf16 or fp32, and are
/// called operands below; all others are fp32. Tokens and targets are one byte each. Products are of operands and of
/// parameters rounded to operand_dtype(); their sums and all other arithmetic are fp32. A result is rounded once, to
/// nearest even. An implementation gives the same bits from run to run.
///
/// Every operation is stream-ordered: the call returns once it is enqueued, and its operands must stay alive until the
/// stream has executed it. An instance is used with one stream, from one thread at a time; several instances may be
/// used concurrently. Nothing here blocks. status() returns the first error; later operations do nothing.
class Ops {
 public:
  Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;
  virtual ~Ops() = default;

  [[nodiscard]] virtual penstock::DType operand_dtype() const = 0;
  /// Whether parameters and gradients may be of this dtype.
  [[nodiscard]] virtual bool supports(penstock::DType parameter) const = 0;
  [[nodiscard]] virtual OpsLimits limits() const = 0;

  /// The first error of any operation enqueued so far.
  [[nodiscard]] virtual penstock::Result<void> status() const = 0;

  /// A layer's input, an operand, and its parameters w[outputs, inputs] and b[outputs].
  struct Linear {
    DeviceTensor x, w, b;
  };
  /// y = x · wᵀ + b, an operand or fp32. An empty b is left out.
  virtual void linear(StreamHandle stream, MatmulSize size, const Linear& in, DeviceTensor y) = 0;
  /// y = residual + x · wᵀ + b. An empty b is left out. residual and y have one dtype, an operand's or fp32, and may be
  /// the same.
  virtual void linear_add(StreamHandle stream, MatmulSize size, const Linear& in, DeviceTensor residual,
                          DeviceTensor y) = 0;
  /// up = x · wᵀ + b, y = gelu(up); both are operands. gelu(u) = u · Φ(u) in its tanh form: u / (1 + exp(−2v)),
  /// v = sqrt(2/π) · (u + 0.044715 u³) (Hendrycks, Gimpel 2016).
  virtual void linear_gelu(StreamHandle stream, MatmulSize size, const Linear& in, DeviceTensor up,
                           DeviceTensor y) = 0;
  /// dx = dy · w. dy is an operand; dx is one or fp32.
  virtual void linear_backward(StreamHandle stream, MatmulSize size, DeviceTensor dy, DeviceTensor w,
                               const Gradient& dx) = 0;
  /// dup = (dy · w) · gelu'(up), of the whole layer whose input is gelu(up). All but w are operands.
  virtual void linear_gelu_backward(StreamHandle stream, MatmulSize size, DeviceTensor dy, DeviceTensor w,
                                    DeviceTensor up, DeviceTensor dup) = 0;
  /// dw = dyᵀ · x and db = Σ_row dy[row], of operands.
  virtual void linear_gradients(StreamHandle stream, MatmulSize size, DeviceTensor dy, DeviceTensor x,
                                Gradient dw, Gradient db) = 0;

  /// dup = dy · gelu'(up), where y = gelu(up). dy is fp32, the others are operands.
  virtual void gelu_backward(StreamHandle stream, DeviceTensor dy, DeviceTensor up, DeviceTensor dup) = 0;

  /// y = x, rounded to an operand.
  virtual void round(StreamHandle stream, DeviceTensor x, DeviceTensor y) = 0;
  /// y += x, over all elements of x.
  virtual void add(StreamHandle stream, DeviceTensor x, DeviceTensor y) = 0;

  /// y = (x − mean) · rstd · gain + b in each row, an operand; rstd = 1 / sqrt(variance + 1e-5). Keeps mean and rstd
  /// for the backward: statistics[rows, 2].
  virtual void layer_norm(StreamHandle stream, RowsSize size, DeviceTensor x, DeviceTensor gain,
                          DeviceTensor b, DeviceTensor y, DeviceTensor statistics) = 0;
  struct LayerNormBackward {
    DeviceTensor x, gain, statistics, dy;  ///< as in the forward; dy[rows, columns]
    DeviceTensor dx;                       ///< may be the same as dy
    Gradient dgain, db;
  };
  virtual void layer_norm_backward(StreamHandle stream, RowsSize size, const LayerNormBackward& tensors) = 0;

  /// Causal multi-head attention; qkv, y and their gradients are operands. A row of qkv[rows, 3 · width] is query, key
  /// and value, one after the other, each divided into heads. Scores exist only in tiles, so memory is linear in the
  /// context (FlashAttention-2, Dao 2023). Keeps log_sums[sequences, heads, context] for the backward: log Σ exp(score)
  /// of each query, where a score is query · key / sqrt(width of a head).
  virtual void attention(StreamHandle stream, AttentionSize size, DeviceTensor qkv, DeviceTensor log_sums,
                         DeviceTensor y) = 0;
  struct AttentionBackward {
    DeviceTensor qkv, log_sums, y;  ///< as in the forward
    DeviceTensor dy;
    DeviceTensor projections;  ///< scratch of the size of log_sums: Σ dy · y of each query and head
    DeviceTensor dqkv;
  };
  virtual void attention_backward(StreamHandle stream, AttentionSize size,
                                  const AttentionBackward& tensors) = 0;

  /// y[row] = embedding[tokens[row]] + positions[row mod context].
  virtual void embed(StreamHandle stream, EmbeddingSize size, DeviceSpan tokens, DeviceTensor embedding,
                     DeviceTensor positions, DeviceTensor y) = 0;
  /// Adds the rows of dy to the gradients of the embedding and of the positions, in increasing order of rows. Neither
  /// is empty.
  virtual void embed_backward(StreamHandle stream, EmbeddingSize size, DeviceSpan tokens, DeviceTensor dy,
                              Gradient dembedding, Gradient dpositions) = 0;

  /// losses[row] = log Σ_c exp(logits[row, c]) − logits[row, targets[row]].
  virtual void cross_entropy(StreamHandle stream, RowsSize size, DeviceTensor logits, DeviceSpan targets,
                             DeviceTensor losses) = 0;
  /// dlogits = scale · (softmax(logits) − onehot(targets)), an operand; if that is fp32, it may be the same as logits.
  virtual void cross_entropy_backward(StreamHandle stream, RowsSize size, DeviceTensor logits,
                                      DeviceSpan targets, float scale, DeviceTensor dlogits) = 0;
};

}  // namespace gpt
