// Seven steps, each a state of the page, a few sentences and one thing to try.
(function (play) {
  "use strict";

  play.story = [
    {
      title: "One answer is an average",
      text: "A model with a single answer, trained on squared error, predicts the mean of the data. Here the mean lies "
        + "between the three clouds, where there is no data at all.",
      attempt: "Press Play, then raise the number of hypotheses to 3.",
      state: "k=1&rules=wta&cooling=hand&heat=0",
    },
    {
      title: "The winner takes all",
      text: "With several hypotheses, each point trains only the one nearest to it. A hypothesis that never wins never moves: "
        + "crosses mark hypotheses that win no point.",
      attempt: "Press Play, then New start a few times. How many crosses remain?",
      state: "k=12&rules=wta&cooling=hand&heat=0",
    },
    {
      title: "Pulling everybody along",
      text: "Relaxed winner-takes-all gives a share ε to the losers, and under top-k the k nearest win. "
        + "Losers now move, but the share never ends: hypotheses stay drawn towards the middle, or share a place.",
      attempt: "Press Play, then drag ε to 0 and watch the distortion.",
      state: "k=12&rules=wta,relaxed,top&cooling=hand&heat=0&epsilon=0.2",
    },
    {
      title: "A temperature",
      text: "Annealing shares each point by softmin(cost / T). Hot, all hypotheses answer alike; cold, the winner "
        + "takes all. In between they split a few at a time.",
      attempt: "Drag the temperature slowly from hot to cold.",
      state: "k=12&rules=annealed&cooling=hand&heat=1.4",
    },
    {
      title: "Why hypotheses split at 2λ",
      text: "While all hypotheses sit at the mean, moving them apart along the widest direction of the data lowers the "
        + "free energy only if T is below 2λ, twice the largest eigenvalue of the covariance. The mark on the dial is "
        + "computed from the data, before anything moves. Hypotheses that are already apart may stay apart above it.",
      attempt: "Press Play, drag just below the mark, and wait a few seconds. Try the other data: the mark moves, the rule holds.",
      state: "k=6&rules=annealed&cooling=hand&heat=1.1&data=branches",
    },
    {
      title: "How good can it be?",
      text: "No n answers can have a lower distortion than the rate-distortion curve at log2 n bits. Annealed "
        + "hypotheses stay close to the curve while the clouds part, and end above it: twelve points in the plane cannot be as "
        + "good as the curve allows. The other rules get stuck earlier; the table shows how far above the floor.",
      attempt: "Press Play and follow the three lines in the chart of rate and distortion.",
      state: "k=12&rules=wta,relaxed,annealed&cooling=exponential&steps=400",
    },
    {
      title: "When annealing does not help",
      text: "From a good start there is little to gain. With hypotheses drawn from the data, winner-takes-all ended lower "
        + "than annealing on these branches in 15 of 16 runs, by 13 % at the median, and on the three clouds in 7 of 16. "
        + "From a corner it was lower in none.",
      attempt: "Press Play. Then set the start to Corner and play again.",
      state: "k=12&rules=wta,annealed&cooling=linear&steps=300&start=data&data=branches",
    },
  ];
})((globalThis.torchmclPlay ??= {}));
