#include <farspan/autograd/message_codec.h>

#include <algorithm>
#include <utility>

#include <farspan/autograd/autograd.capnp.h>
#include <farspan/autograd/overloaded.h>
#include <farspan/c10d/values/tensor_codec.h>
#include <farspan/rpc/wire/messages.h>

namespace farspan::dist_autograd {
namespace {

void write(schema::Message::Builder out, const PassId& pass) {
  out.setContext(static_cast<uint64_t>(pass.context));
  out.setInitiator(pass.initiator);
  out.setNumber(pass.number);
}

void write(schema::Message::Builder out, const PassTerms& terms) {
  out.setFast(terms.mode == PassMode::kFast);
  out.setRetainGraph(terms.retain_graph);
  if (terms.remaining != Clock::duration::max()) {
    const auto left = std::chrono::duration_cast<Micros>(terms.remaining).count();
    out.setRemainingUs(static_cast<uint64_t>(std::max<int64_t>(left, 1)));
  }
}

PassId read_pass(schema::Message::Reader in) {
  return {ContextId(in.getContext()), in.getInitiator(), in.getNumber()};
}

PassTerms read_terms(schema::Message::Reader in) {
  PassTerms terms;
  terms.mode = in.getFast() ? PassMode::kFast : PassMode::kExact;
  terms.retain_graph = in.getRetainGraph();
  if (in.getRemainingUs() > 0) {
    terms.remaining = Micros(std::min<uint64_t>(in.getRemainingUs(), 1ull << 50));
  }
  return terms;
}

template <class List, class Values>
void fill(List list, const Values& values) {
  for (unsigned i = 0; i < list.size(); ++i) {
    list.set(i, static_cast<std::decay_t<decltype(list[i])>>(values[i]));
  }
}

void write_gradients(schema::Message::Gradient::Builder out,
                     const std::vector<at::Tensor>& gradients, std::vector<Buffer>& segments,
                     ValueScope* scope) {
  Writer writer(segments, scope);
  auto payload = out.initPayload();
  auto values = payload.initValues(static_cast<unsigned>(gradients.size()));
  for (unsigned i = 0; i < values.size(); ++i) {
    if (gradients[i].defined()) {
      values[i].setTensor(writer.add(gradients[i].detach()));
    } else {
      values[i].setNone();
    }
  }
  write_tensors(payload, writer);
}

std::vector<at::Tensor> read_gradients(farspan::schema::Payload::Reader payload,
                                       std::span<const Buffer> segments, ValueScope* scope) {
  const TensorList tensors = read_tensors(payload, segments, scope);
  std::vector<at::Tensor> gradients;
  for (const auto value : payload.getValues()) {
    const bool is_there = value.isTensor() && value.getTensor() < tensors.size();
    gradients.push_back(is_there ? tensors[value.getTensor()] : at::Tensor());
  }
  return gradients;
}

}  // namespace

void encode(MetaBuilder& builder, const PassMessage& message,
            const std::vector<at::Tensor>& gradients, std::vector<Buffer>& segments,
            ValueScope* scope) {
  guard_write([&] {
    auto out = builder.init_root<schema::Message>();
    const auto id_of = [&](const auto& m) { write(out, m.pass); };
    std::visit(id_of, message);
    std::visit(Overloaded{
                   [&](const Question& m) {
                     write(out, m.terms);
                     auto question = out.initQuestion();
                     question.setId(m.id);
                     fill(question.initSends(static_cast<unsigned>(m.sends.size())), m.sends);
                   },
                   [&](const Answer& m) {
                     auto answer = out.initAnswer();
                     answer.setQuestion(m.question);
                     fill(answer.initWorkers(static_cast<unsigned>(m.workers.size())), m.workers);
                   },
                   [&](const Go&) { out.setGo(); },
                   [&](const GradientHead& m) {
                     write(out, m.terms);
                     auto gradient = out.initGradient();
                     gradient.setSend(static_cast<uint64_t>(m.send));
                     write_gradients(gradient, gradients, segments, scope);
                   },
                   [&](const Done& m) {
                     fill(out.initDone(static_cast<unsigned>(m.contacted.size())), m.contacted);
                   },
                   [&](const Abort& m) {
                     const Buffer error = wire::encode(m.why);
                     out.setAbort({reinterpret_cast<const kj::byte*>(error.data()), error.size()});
                   },
               },
               message);
  });
}

void encode(MetaBuilder& builder, const Release& release) {
  auto out = builder.init_root<schema::Message>();
  out.setContext(static_cast<uint64_t>(release.context));
  out.setRelease();
  out.setLost(release.lost);
}

Decoded decode(std::span<const std::byte> meta, std::span<const Buffer> segments,
               CallScope* scope) {
  return guard_read([&] {
    MetaReader reader(meta);
    const auto in = reader.root<schema::Message>();
    const PassId pass = read_pass(in);
    Decoded decoded;
    switch (in.which()) {
      case schema::Message::QUESTION: {
        Question m{pass, read_terms(in), in.getQuestion().getId(), {}};
        for (const uint64_t send : in.getQuestion().getSends()) m.sends.push_back(SendId(send));
        decoded.message = std::move(m);
        break;
      }
      case schema::Message::ANSWER: {
        Answer m{pass, in.getAnswer().getQuestion(), {}};
        for (const int32_t rank : in.getAnswer().getWorkers()) m.workers.push_back(rank);
        decoded.message = std::move(m);
        break;
      }
      case schema::Message::GO:
        decoded.message = Go{pass};
        break;
      case schema::Message::GRADIENT: {
        const PassTerms terms = read_terms(in);
        if (scope) scope->device_terms().deadline = Deadline::after(terms.remaining);
        try {
          decoded.gradients = read_gradients(in.getGradient().getPayload(), segments, scope);
        } catch (...) {
          decoded.failure = std::current_exception();
        }
        decoded.message = GradientHead{pass, terms, SendId(in.getGradient().getSend())};
        break;
      }
      case schema::Message::DONE: {
        Done m{pass, {}};
        for (const int32_t rank : in.getDone()) m.contacted.push_back(rank);
        decoded.message = std::move(m);
        break;
      }
      case schema::Message::ABORT: {
        const auto bytes = in.getAbort();
        const Buffer aligned =
            Buffer::copy_of({reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()});
        decoded.message = Abort{pass, wire::decode_error(aligned.span())};
        break;
      }
      case schema::Message::RELEASE:
        decoded.release = Release{pass.context, in.getLost()};
        break;
      default:
        throw Error(Code::kCorrupt, "an unknown message about a backward pass");
    }
    return decoded;
  });
}

PassId pass_of(std::span<const std::byte> meta) {
  return guard_read([&] {
    MetaReader reader(meta);
    return read_pass(reader.root<schema::Message>());
  });
}

}  // namespace farspan::dist_autograd
