for (const sound of document.querySelectorAll(".sound")) {
  const audio = sound.querySelector("audio"), pictures = sound.querySelector(".pictures");
  const head = sound.querySelector(".head");
  const show = () => {
    if (!(audio.duration > 0)) return;
    head.style.visibility = "visible";
    head.style.left = 100 * audio.currentTime / audio.duration + "%";
    if (!audio.paused) requestAnimationFrame(show);
  };
  audio.addEventListener("play", () => {
    for (const other of document.querySelectorAll("audio")) if (other !== audio) other.pause();
    show();
  });
  audio.addEventListener("seeked", show);
  pictures.addEventListener("click", event => {
    if (!(audio.duration > 0)) return;
    const box = pictures.getBoundingClientRect();
    audio.currentTime = audio.duration * (event.clientX - box.left) / box.width;
  });
}
